# SPDX-License-Identifier: Apache-2.0
"""What is shown of the rows of bench/decode.py: the README's table, that of docs/models.md, and a plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Iterable

from sparq_ipu.commands.tables import markdown_table

from .common import Row, number

TYPES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "int8": "int8",
    "int4": "int4",
    "gguf": "the file's",
}
#: the load average up to which two threads of ours had the machine to themselves
QUIET = 3.0
#: of the plot: the method, or the best one of those that begin so
LINES = {"plain": "transformers alone, its best", "dense": "dense, our cache", "sparq": "SparQ"}


def read_rows(path: Path) -> list[Row]:
    """Those that --json wrote. Raises: ValueError: a line is not JSON."""
    rows = []
    for at, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError):
            raise ValueError(f"line {at} is not JSON") from None
    return rows


def best_plain(rows: Iterable[Row], of: Row) -> float | None:
    """Tokens per second of the best method without us, at the length and batch of a row."""
    found = _best(rows, of["seq_len"], of["batch"], "plain")
    return None if found is None else found["tokens_per_second"]


def _best(rows: Iterable[Row], seq_len: int, batch: int, method: str, dtype: str = "") -> Row | None:
    """The fastest row of the methods that begin so."""
    found = [
        row
        for row in rows
        if row["tokens_per_second"] is not None
        and (row["seq_len"], row["batch"]) == (seq_len, batch)
        and row["method"].startswith(method)
        and row["dtype"].startswith(dtype)
    ]
    return max(found, key=lambda row: row["tokens_per_second"], default=None)


def _sizes(rows: Iterable[Row]) -> list[tuple[int, int]]:
    return sorted({(row["batch"], row["seq_len"]) for row in rows})


def published(rows: Iterable[Row]) -> list[Row]:
    """The rows that say something: those of a quiet machine, or else of CPU time, which needs none."""
    worked = [row for row in rows if row["error"] is None and row["tokens_per_second"] is not None]
    quiet = [row for row in worked if row["clock"] == "wall" and max(row["load_average"]) <= QUIET]
    return quiet or [row for row in worked if row["clock"] == "cpu"]


def _how(rows: list[Row]) -> str:
    """How the rows came about, in a sentence."""
    row = rows[0]
    rates = [r["memory_bytes_per_second"] / 1e9 for r in rows]
    loads = [load for r in rows for load in r["load_average"]]
    if row["clock"] == "cpu":
        what = "By CPU time of one thread, for the machine had other work"
    else:
        what = f"By wall time, {row['n_threads']} threads"
    return (
        f"{what} (load {min(loads):.1f} to {max(loads):.1f}); {row['cpu']}, which read memory at "
        f"{min(rates):.1f} to {max(rates):.1f} GB/s."
    )


def _commands(rows: list[Row]) -> str:
    return "\n".join(sorted({f"    OMP_NUM_THREADS={r['n_threads']} {r['command']}" for r in rows}))


def of_the_lengths(rows: list[Row]) -> str:
    """Tokens per second, a line for each length: for the README."""
    lines = []
    rows = published(rows)
    for batch, seq_len in _sizes(rows):
        plain = _best(rows, seq_len, batch, "plain")
        cells = [str(seq_len), "-"]
        if plain is not None:
            name = f"{plain['method'][len('plain-') :]} {TYPES[plain['dtype']]}"
            cells[1] = f"{plain['tokens_per_second']:.1f} ({name})"
        for method in ("dense", "sparq"):
            for dtype in ("float32", "bfloat16"):
                row = _best(rows, seq_len, batch, method, dtype)
                cells.append(number(None if row is None else row["tokens_per_second"], ".1f"))
        sparq = _best(rows, seq_len, batch, "sparq")
        gain = None if sparq is None or plain is None else _ratio(sparq, plain)
        lines.append([*cells, number(gain, ".1f", unit="x")])
        if batch != 1:
            lines[-1][0] += f", batch {batch}"
    header = ["positions", "transformers, its best", "dense fp32", "dense bf16", "SparQ fp32", "SparQ bf16"]
    return markdown_table([*header, "best SparQ / best transformers"], lines) + f"\n\n{_how(rows)}"


def _ratio(row: Row, of: Row) -> float:
    ratio: float = row["tokens_per_second"] / of["tokens_per_second"]
    return ratio


def all_rows(rows: list[Row]) -> str:
    """Every row, with the parts of a step: for docs/models.md."""
    header = ["method", "weights", "positions", "batch", "tokens/s", "ms a step", "MAD", "fastest to slowest"]
    header += ["products ms", "attention ms", "rest ms", "cache MB"]
    lines, rows = [], published(rows)
    for row in sorted(rows, key=lambda row: (row["batch"], row["seq_len"])):
        times = [number(row[f"seconds_{name}"], ".1f", 1e3) for name in ("per_step", "mad")]
        ends = [number(row[f"seconds_{name}"], ".1f", 1e3) for name in ("min", "max")]
        parts = [number(row[f"seconds_{name}"], ".1f", 1e3) for name in ("products", "attention", "rest")]
        first = [row["method"], TYPES[row["dtype"]], row["seq_len"], row["batch"]]
        speed = number(row["tokens_per_second"], ".1f")
        cache = number(row["cache_bytes"], ".0f", 1e-6)
        lines.append([*first, speed, *times, " to ".join(ends), *parts, cache])
    return markdown_table(header, lines) + f"\n\n{_how(rows)} The commands:\n\n{_commands(rows)}"


#: a column of the table beside other programs: what it is called, method, weights, rows of the cache, bits of
#: the key index
PEERS = (
    ("llama.cpp, f16", "llama.cpp", "gguf", "f16", None),
    ("llama.cpp, q8_0", "llama.cpp", "gguf", "q8_0", None),
    ("OpenVINO, f16", "openvino", "gguf", "f16", None),
    ("OpenVINO, u8", "openvino", "gguf", "u8", None),
    ("dense, bf16", "dense", "bfloat16", "f16", None),
    ("SparQ, bf16", "sparq", "bfloat16", "f16", 4),
    ("SparQ as recommended, bf16", "recommended", "bfloat16", "f16", 2),
    ("dense, int8", "dense", "int8", "f16", None),
    ("SparQ, int8", "sparq", "int8", "f16", 4),
    ("dense, int4", "dense", "int4", "f16", None),
    ("SparQ, int4", "sparq", "int4", "f16", 4),
    ("SparQ, 2 bits, int4", "sparq", "int4", "f16", 2),
    ("SparQ as recommended, int4", "recommended", "int4", "f16", 2),
)
_MODELS = {"smollm2": "SmolLM2-135M"}


def of_the_peers(rows: list[Row]) -> str:
    """Tokens per second beside other programs, and seconds to the first token; tables for each processor."""
    text = []
    rows = [row for row in rows if row["error"] is None]
    for in_turns in (True, False):
        for cpu in sorted({row["cpu"] for row in rows}):
            # only rows that were measured in turns say how long the processors stood still
            group = [r for r in rows if r["cpu"] == cpu and (r.get("paused") is not None) == in_turns]
            if group:
                text += _of_a_processor(group, f"{cpu}, {'in turns' if in_turns else 'one after another'}")
    return "\n\n".join(text)


def _of_a_processor(rows: list[Row], how: str) -> list[str]:
    """Paragraphs, of rows that are compared."""
    text, columns = [], [p for p in PEERS if any(_is(row, p) for row in rows)]
    for values, form, said in (
        ("tokens_per_second", ".1f", "Tokens per second after the first"),
        ("first_token_seconds", ".2f", "Seconds from the prompt to the first token"),
    ):
        lines = []
        for model, seq_len in sorted({(row["model"], row["seq_len"]) for row in rows}):
            here = [row for row in rows if (row["model"], row["seq_len"]) == (model, seq_len)]
            cells = [next((row[values] for row in here if _is(row, p)), None) for p in columns]
            name = _MODELS.get(model, Path(model).stem)
            lines.append([name, str(seq_len), *(number(cell, form) for cell in cells)])
        header = ["model", "positions", *(p[0] for p in columns)]
        text.append(f"{said}, {how}:\n\n{markdown_table(header, lines)}")
    shares = [row["others"] for row in rows]
    paces = [row["memory_bytes_per_second"] / 1e9 for row in rows if row["memory_bytes_per_second"]]
    paused = [row["paused"] for row in rows if row.get("paused") is not None]
    said = f"Other programs took at most {max(shares):.1%} of the processors meanwhile."
    if paces:
        said += f" Memory was read at {min(paces):.1f} to {max(paces):.1f} GB/s."
    if paused:
        said += f" The processors stood still for at most {max(paused):.1%} of the time."
    return [*text, f"{said} The commands:", _commands(rows)]


def _is(row: Row, column: tuple[str, str, str, str, int | None]) -> bool:
    return (row["method"], row["dtype"], row.get("kv_type"), row["index_bits"]) == column[1:]


def plot(rows: list[Row], path: Path) -> None:
    """Tokens per second over the length, one line for each way and type, of batch 1."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = published(rows)
    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    for style, dtype in (("--", "float32"), ("-", "bfloat16")):
        for color, (method, label) in zip(("tab:gray", "tab:blue", "tab:red"), LINES.items()):
            best = [_best(rows, seq_len, 1, method, dtype) for batch, seq_len in _sizes(rows) if batch == 1]
            points = [(row["seq_len"], row["tokens_per_second"]) for row in best if row is not None]
            axes.plot(*zip(*points), style, color=color, marker="o", label=f"{label}, {TYPES[dtype]}")
    axes.set(xscale="log", xlabel="positions in the cache", ylabel="tokens per second")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(matplotlib.ticker.ScalarFormatter())
    axes.set_xticks(sorted({row["seq_len"] for row in rows}))
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
