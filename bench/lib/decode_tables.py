# SPDX-License-Identifier: Apache-2.0
"""Tables of docs/benchmarks.md from rows of bench/decode.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Iterable

from sparq_ipu.commands.tables import markdown_table

from .common import ROOT, Row, number
from .origin import caption
from .quiet import QUIET_SHARE

TYPES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "int8": "int8",
    "int4": "int4",
    "gguf": "the file's",
}
#: the published rows of `bench/decode.py --peers`
PEERS = ROOT / "bench/results/peers.jsonl"


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
    """Tokens per second of the fastest method of transformers, at the length and batch of a row."""
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
    """Rows without errors: those of a quiet machine, or else those of CPU time."""
    worked = [row for row in rows if row["error"] is None and row["tokens_per_second"] is not None]
    quiet = [row for row in worked if row["clock"] == "wall" and (row["others"] or 0.0) <= QUIET_SHARE]
    return quiet or [row for row in worked if row["clock"] == "cpu"]


def how(rows: list[Row]) -> str:
    """Processor, load, day, commit and commands of the rows."""
    shares = [row["others"] or 0.0 for row in rows]
    rates = [row["memory_bytes_per_second"] / 1e9 for row in rows if row["memory_bytes_per_second"]]
    paused = [row["paused"] for row in rows if row["paused"] is not None]
    spread = [row["seconds_mad"] / row["seconds_per_step"] for row in rows if row["seconds_mad"]]
    said = []
    if spread:
        counts = sorted({row["n_steps"] for row in rows if row["n_steps"]})
        most = f" to {counts[-1]}" if len(counts) > 1 else ""
        said.append(
            f"Times are medians of {counts[0]}{most} tokens; their median deviation is "
            f"{min(spread):.0%} to {max(spread):.0%}"
        )
    if rows[0]["clock"] == "cpu":
        said.append("CPU time of one thread")
    else:
        said.append(f"Other programs used at most {max(shares):.1%} of the processors")
    said += prompts_of(rows)
    if rates:
        said.append(f"Measured memory bandwidth: {min(rates):.1f} to {max(rates):.1f} GB/s")
    if paused:
        said.append(f"The host paused the processors for at most {max(paused):.1%} of the time")
    versions = sorted({f"{row['method']} {row['version']}" for row in rows if row.get("version")})
    if versions:
        said.append(f"Packages: {', '.join(versions)}")
    return caption(rows, *said, environment=f"OMP_NUM_THREADS={rows[0]['n_threads']} ")


def prompts_of(rows: list[Row]) -> list[str]:
    """A sentence about the prompts, if any was timed. Rows without that column have random tokens."""
    kinds = {row.get("prompt", "random tokens") for row in rows if row.get("first_token_seconds")}
    return [f"Prompts: {' and '.join(sorted(kinds))}"] if kinds else []


def of_the_lengths(rows: list[Row]) -> str:
    """Tokens per second beside transformers, a line for each length."""
    lines = []
    rows = published(rows)
    for batch, seq_len in _sizes(rows):
        plain = _best(rows, seq_len, batch, "plain")
        cells = [f"{seq_len:,}", str(batch), "-"]
        if plain is not None:
            name = f"{plain['method'][len('plain-') :]} {TYPES[plain['dtype']]}"
            cells[2] = f"{plain['tokens_per_second']:.1f} ({name})"
        ours = [_best(rows, seq_len, batch, method) for method in ("dense", "recommended")]
        cells += [number(None if row is None else row["tokens_per_second"], ".1f") for row in ours]
        for row in ours:
            gain = None if row is None or plain is None else _ratio(row, plain)
            cells.append(number(gain, ".1f", unit="x"))
        lines.append(cells)
    header = ["positions", "batch", "fastest of transformers", "ours, dense", "ours, SparQ"]
    header += ["dense / transformers", "SparQ / transformers"]
    return markdown_table(header, lines) + f"\n\n{how(rows)}"


def _ratio(row: Row, of: Row) -> float:
    ratio: float = row["tokens_per_second"] / of["tokens_per_second"]
    return ratio


#: new tokens of an answer, for the time of prompt and answer
NEW_TOKENS = (128, 512)
#: columns of the tables beside other programs: label, method, weights, type of the KV cache, bits of the key
#: index
PEERS_COLUMNS = (
    ("llama.cpp, f16", "llama.cpp", "gguf", "f16", None),
    ("llama.cpp, q8_0", "llama.cpp", "gguf", "q8_0", None),
    ("llama.cpp without flash attention, f16", "llama.cpp-no-flash", "gguf", "f16", None),
    ("OpenVINO, f16", "openvino", "gguf", "f16", None),
    ("OpenVINO, u8", "openvino", "gguf", "u8", None),
    ("OpenVINO with XAttention, f16", "openvino-xattention", "gguf", "f16", None),
    ("OpenVINO with XAttention, u8", "openvino-xattention", "gguf", "u8", None),
    ("mistral.rs, f16", "mistral.rs", "gguf", "f16", None),
    ("dense, bf16", "dense", "bfloat16", "f16", None),
    ("SparQ, bf16", "recommended", "bfloat16", "f16", 2),
    ("dense, int8", "dense", "int8", "f16", None),
    ("SparQ, int8", "recommended", "int8", "f16", 2),
    ("dense, int4", "dense", "int4", "f16", None),
    ("SparQ, int4", "recommended", "int4", "f16", 2),
)
_MODELS = {"smollm2": "SmolLM2-135M"}


def model_name(model: str) -> str:
    """A model as tables call it."""
    name = Path(model).name
    name = name[: -len(".gguf")] if name.endswith(".gguf") else name
    return _MODELS.get(name, name)


def fastest_runs(rows: Iterable[Row]) -> dict[tuple[str, int, int], dict[str, Row]]:
    """(model's name, batch, positions) -> method -> its fastest row that has no error. llama.cpp with and
    without flash attention are one method."""
    runs: dict[tuple[str, int, int], dict[str, Row]] = {}
    worked = [row for row in rows if row["error"] is None]
    for row in sorted(worked, key=lambda row: row["tokens_per_second"]):
        method = row["method"].replace("-no-flash", "")
        runs.setdefault((model_name(row["model"]), row["batch"], row["seq_len"]), {})[method] = row
    return runs


def of_the_peers(rows: list[Row]) -> str:
    """Tokens per second beside other programs, seconds to the first token, and for prompt and answer; tables
    for each processor."""
    # --predict reads all blocks of a prompt, whatever the method.
    shown = [row for row in rows if row["error"] is None and "predicted_first_token_seconds" not in row]
    rows = [{**row, **_totals(row)} for row in shown]
    return "\n\n".join(
        part
        for cpu in dict.fromkeys(row["cpu"] for row in reversed(rows))
        for part in _of_a_processor([row for row in rows if row["cpu"] == cpu])
    )


def _of_a_processor(rows: list[Row]) -> list[str]:
    """Paragraphs, of rows that are compared."""
    text, plain = [], any(_is_plain(row) for row in rows)
    columns = [p for p in PEERS_COLUMNS if any(_is(row, p) for row in rows)]
    for values, best, form, said in (
        ("tokens_per_second", max, ".1f", "Decoded tokens per second, without the first token"),
        ("first_token_seconds", min, ".2f", "Time to first token in seconds"),
        *((f"seconds_{n}", min, ".1f", f"Seconds for prefill and {n} new tokens") for n in NEW_TOKENS),
    ):
        lines = []
        for model, seq_len in sorted({(row["model"], row["seq_len"]) for row in rows}):
            here = [row for row in rows if (row["model"], row["seq_len"]) == (model, seq_len)]
            cells = [next((row[values] for row in here if _is(row, p)), None) for p in columns]
            if plain:
                of_plain = [r[values] for r in here if _is_plain(r) and r[values]]
                cells.insert(0, best(of_plain, default=None))
            lines.append([model_name(model), f"{seq_len:,}", *(number(cell, form) for cell in cells)])
        header = ["model", "positions", *(["fastest of transformers, bf16"] if plain else [])]
        text.append(
            f"{said}, {rows[-1]['cpu']}:\n\n{markdown_table([*header, *(p[0] for p in columns)], lines)}"
        )
    return [*text, how(rows)]


def _totals(row: Row) -> Row:
    """Seconds from a prompt to the last of some new tokens: to the first one, and a median step for each of
    the others."""
    first, step = row["first_token_seconds"], row["seconds_per_step"]
    is_known = first is not None and step is not None
    return {f"seconds_{n}": first + (n - 1) * step if is_known else None for n in NEW_TOKENS}


def _is_plain(row: Row) -> bool:
    """Whether the row is transformers alone, without our weights of few bits."""
    return bool(row["method"].startswith("plain") and row["dtype"] == "bfloat16")


def _is(row: Row, column: tuple[str, str, str, str, int | None]) -> bool:
    return (row["method"], row["dtype"], row.get("kv_type"), row["index_bits"]) == column[1:]
