#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The README's picture and table: a whole model on a CPU beside other programs, from committed rows.

    python bench/headline.py --write

The rows are those of `bench/decode.py --peers` on one processor, that of the last row. The picture shows the
model with most lengths: seconds for the prompt and 256 new tokens, and tokens per second after the first.
--write draws docs/headline.png and puts a sentence and the table into README.md; without it the table is
printed.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any, Dict, Iterable, NamedTuple, cast

from lib.common import ROOT, Parser, Row, guarded
from lib.decode_tables import PEERS, model_name, read_rows

from sparq_ipu.commands import pictures
from sparq_ipu.commands.tables import markdown_table, replace_block
from sparq_ipu.planning.cpu_plan import CpuPlan
from sparq_ipu.planning.model_shape import shape_of
from sparq_ipu.transformers.settings.layers import complete, recommended_top_k

README, PICTURE = ROOT / "README.md", ROOT / "docs/headline.png"
#: new tokens after the prompt
NEW_TOKENS = 256
#: what bytes allow sparsity to gain in a model of usual size
LARGE = "Llama-3-8B"


class Way(NamedTuple):
    """A line of the picture: rows with this beginning of the method's name and these weights."""

    label: str
    method: str
    dtype: str
    colour: str


DEFAULT = Way("SparQ, default settings (int4)", "recommended", "int4", "tab:red")
DENSE = Way("dense, our cache and kernels (int4)", "dense", "int4", "tab:blue")
OTHERS = (
    Way("OpenVINO GenAI (the file's weights)", "openvino", "gguf", "tab:green"),
    Way("llama.cpp (the file's weights)", "llama.cpp", "gguf", "tab:orange"),
    Way("transformers (bfloat16)", "plain", "bfloat16", "tab:gray"),
)
SHORT = {"openvino": "OpenVINO", "llama.cpp": "llama.cpp", "plain": "transformers"}


class Point(NamedTuple):
    """What one way takes at one length."""

    tokens_per_second: float
    #: to the first token; None: not measured
    first: float | None

    @property
    def total(self) -> float | None:
        """Seconds for the prompt and the new tokens."""
        return None if self.first is None else self.first + (NEW_TOKENS - 1) / self.tokens_per_second


Points = Dict[str, Dict[int, Dict[str, Point]]]  # model -> positions -> method of a way


def comparable(rows: list[Row]) -> list[Row]:
    """The rows that were measured on the processor of the last one."""
    worked = [row for row in rows if row["error"] is None and row["tokens_per_second"] is not None]
    if not any(row["method"] == DEFAULT.method for row in worked):
        raise ValueError(f"headline: rows must have the method {DEFAULT.method!r}, got none")
    return [row for row in worked if row["cpu"] == worked[-1]["cpu"]]


def points(rows: list[Row]) -> Points:
    """The fastest row of each way, by model and length. Our two ways share one time of the prompt, for both
    read it with the same code."""
    found: Points = {}
    for row in rows:
        here = found.setdefault(row["model"], {}).setdefault(row["seq_len"], {})
        for way in (DEFAULT, DENSE, *OTHERS):
            if row["method"].startswith(way.method) and row["dtype"] == way.dtype:
                before, first = here.get(way.method), row["first_token_seconds"]
                firsts = [x for x in (first, before and before.first) if x is not None]
                speed = max(row["tokens_per_second"], before.tokens_per_second if before else 0.0)
                here[way.method] = Point(speed, min(firsts, default=None))
    for lengths in found.values():
        for here in lengths.values():
            ours = [here[way.method] for way in (DEFAULT, DENSE) if way.method in here]
            first = min((p.first for p in ours if p.first is not None), default=None)
            for way in (DEFAULT, DENSE):
                if way.method in here:
                    here[way.method] = here[way.method]._replace(first=first)
    return found


class Line(NamedTuple):
    """A model at a length: ours, and of the other programs the fastest, and the one with its answer first."""

    model: str
    seq_len: int
    ours: Point
    dense: Point
    best: tuple[str, float]
    soonest: tuple[str, float] | None
    #: shorter answers end sooner with another program; infinite: all do
    least_answer: float

    def gains(self) -> tuple[float, float, float]:
        """Over the fastest other program; that of cache and kernels alone; that of sparsity."""
        speed, dense, best = self.ours.tokens_per_second, self.dense.tokens_per_second, self.best[1]
        return speed / best, dense / best, speed / dense


def least_answer(ours: Point, others: Iterable[Point]) -> float:
    """New tokens from which on we end before each of the others that were timed."""
    least = 1
    for other in others:
        late = 0.0 if ours.first is None or other.first is None else ours.first - other.first
        saved = 1 / other.tokens_per_second - 1 / ours.tokens_per_second
        if late > 0:
            least = max(least, math.inf if saved <= 0 else 1 + math.ceil(late / saved))
    return least


def lines_of(found: Points) -> list[Line]:
    """What can be compared: lengths with our ways and another program."""
    lines = []
    for model in sorted(found, key=lambda name: (min(found[name]), name)):
        for seq_len, here in sorted(found[model].items()):
            others = {SHORT[way.method]: here[way.method] for way in OTHERS if way.method in here}
            if DEFAULT.method in here and DENSE.method in here and others:
                speeds = [(name, point.tokens_per_second) for name, point in others.items()]
                totals = [(name, point.total) for name, point in others.items() if point.total is not None]
                soonest = min(totals, key=lambda of: of[1], default=None)
                ours, dense = here[DEFAULT.method], here[DENSE.method]
                best, least = max(speeds, key=lambda of: of[1]), least_answer(ours, others.values())
                lines.append(Line(model, seq_len, ours, dense, best, soonest, least))
    return lines


def table(lines: list[Line]) -> str:
    """Tokens per second with the gain split in two, and seconds of a whole answer."""
    whole = f"prompt + {NEW_TOKENS} tokens"
    head = ("model", "tokens before", "best other", "ours, dense", "ours, SparQ")
    head += ("gain = cache and kernels x sparsity", f"{whole}: best other", f"{whole}: ours")
    rows = []
    for line in lines:
        gain, kernels, sparsity = line.gains()
        rows.append(
            [
                model_name(line.model),
                f"{line.seq_len:,}",
                f"{line.best[1]:.1f} ({line.best[0]})",
                f"{line.dense.tokens_per_second:.1f}",
                f"{line.ours.tokens_per_second:.1f}",
                f"{gain:.2f} = {kernels:.2f} x {sparsity:.2f}",
                "-" if line.soonest is None else f"{line.soonest[1]:.1f} s ({line.soonest[0]})",
                "-" if line.ours.total is None else f"{line.ours.total:.1f} s",
            ]
        )
    return markdown_table(head, rows)


def of_prompts(found: Points) -> str:
    """How long we take to read a prompt, beside the program that reads it soonest, and what that costs."""
    ratios = []
    for here in (here for lengths in found.values() for here in lengths.values() if DEFAULT.method in here):
        others = {SHORT[way.method]: here[way.method].first for way in OTHERS if way.method in here}
        timed = [(seconds, name) for name, seconds in others.items() if seconds is not None]
        ours = here[DEFAULT.method].first
        if ours is not None and timed:
            ratios.append((ours / min(timed)[0], min(timed)[1]))
    if not ratios:
        return "Prompts were not timed."
    names = " or ".join(dict.fromkeys(name for _, name in ratios))
    low, high = min(ratios)[0], max(ratios)[0]
    text = f"SparQ does not speed up prefill: we take {low:.2f} to {high:.2f} times as long as {names}"
    text += " to read a prompt."
    late = [line for line in lines_of(found) if line.least_answer > 1]
    if late:
        line = max(late, key=lambda line: line.seq_len)
        least = line.least_answer
        answers = f"answers of under {least:,} tokens" if math.isfinite(least) else "all answers"
        text += f" After {line.seq_len:,} tokens {names} finishes {answers} first."
    return text


def bound(model: str, seq_len: int) -> float:
    """How many times as many bytes a token reads with dense attention and weights of 4 bits."""
    shape = shape_of("headline", model)
    settings = complete("headline", shape.head_dim, {"top_k": recommended_top_k(seq_len)})
    windows = (None,) * shape.n_layers
    plan = CpuPlan(shape, "int4", seq_len, 1, 1, settings, windows, cast(Any, None))
    dense, sparq = plan.cache_bytes_read(None), plan.cache_bytes_read(settings.index_bits)
    return (plan.weight_bytes_read + dense) / (plan.weight_bytes_read + sparq)


def sentence(lines: list[Line], cpu: str) -> str:
    """The longest context, in a sentence."""
    line = max(lines, key=lambda line: line.seq_len)
    gain, kernels, sparsity = line.gains()
    text = (
        f"* **Measured on a CPU:** after {line.seq_len:,} tokens {model_name(line.model)} decodes "
        f"{line.ours.tokens_per_second:.1f} tokens/s with default settings, {gain:.2f} times as fast as "
        f"{line.best[0]} ({cpu}, 4-bit weights). Our cache and kernels give a factor of {kernels:.2f}, "
        f"sparsity one of {sparsity:.2f}."
    )
    if line.soonest is not None and line.ours.total is not None:
        text += (
            f" A prompt of that length and {NEW_TOKENS} new tokens take {line.ours.total:.1f} s, "
            f"with {line.soonest[0]} {line.soonest[1]:.1f} s."
        )
    return (
        f"{text}\n* **Larger models gain less,** because weights outweigh the cache: with 4-bit weights, "
        f"sparsity makes {LARGE} at most {bound(LARGE, line.seq_len):.2f} times as fast at this length. "
        "Run `sparq-ipu plan` first."
    )


def shown(found: Points) -> tuple[str, dict[str, list[tuple[int, Point]]]]:
    """The model of the picture, and the points of each line, by length."""
    model = max(found, key=lambda name: (len(found[name]), max(found[name])))
    return model, {
        way.method: [(n, here[way.method]) for n, here in sorted(found[model].items()) if way.method in here]
        for way in (DEFAULT, DENSE, *OTHERS)
    }


def draw(found: Points, cpu: str, path: Path) -> Path:
    """The picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    model, lines = shown(found)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.2))
    for way in (DEFAULT, DENSE, *OTHERS):
        style = dict(color=way.colour, marker="o", markersize=4, linewidth=2.2 if way is DEFAULT else 1.4)
        speeds = [(n, point.tokens_per_second) for n, point in lines[way.method]]
        totals = [(n, point.total) for n, point in lines[way.method] if point.total is not None]
        if speeds:
            right.plot(*zip(*speeds), label=way.label, **style)
        if totals:
            left.plot(*zip(*totals), **style)
    lengths = sorted(found[model])
    left.set(title=f"Seconds for a prompt and {NEW_TOKENS} new tokens (lower is better)", yscale="log")
    right.set(title="Tokens per second after the first (higher is better)")
    right.set_ylim(bottom=0)
    left.yaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
    for axes in (left, right):
        axes.set(xscale="log", xlabel="tokens of the prompt")
        axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
        axes.minorticks_off()
        axes.title.set_fontsize(10)
        axes.grid(alpha=0.3)
    totals = [point.total for line in lines.values() for _, point in line if point.total is not None]
    ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500) if min(totals) / 2 < t < max(totals) * 2]
    left.set_yticks(ticks, [str(t) for t in ticks])
    left.yaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=3, fontsize=8.5, frameon=False)
    figure.suptitle(f"{model_name(model)}, 4-bit GGUF file, {cpu}", fontsize=10)
    figure.tight_layout(rect=(0, 0.11, 1, 1))
    return pictures.save(figure, path, lines, dpi=120)


def main(argv: list[str] | None = None) -> int:
    """The command."""
    cli = Parser(
        prog="bench/headline.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("--read", type=Path, default=PEERS, help="the rows (default bench/results/peers.jsonl)")
    cli.add_argument("--write", action="store_true", help="write the picture and the table of README.md")
    a = cli.parse_args(argv)
    try:
        rows = comparable(read_rows(a.read))
    except (OSError, ValueError) as error:
        cli.error(f"--read must be a file of rows, got {a.read} ({error})")
    found = points(rows)
    lines = lines_of(found)
    print(table(lines))
    if a.write:
        replace_block(README, "gain", sentence(lines, rows[-1]["cpu"]))
        replace_block(README, "headline", f"{caption(rows)}\n\n{table(lines)}\n\n{of_prompts(found)}")
        draw(found, rows[-1]["cpu"], PICTURE)
    return 0


def caption(rows: list[Row]) -> str:
    """What the table's figures are of."""
    ours = {row["top_k"] for row in rows if row["method"] == DEFAULT.method and row["dtype"] == DEFAULT.dtype}
    top_k = " or ".join(str(value) for value in sorted(ours))
    return (
        f"Decoded tokens per second, without the first token. {rows[-1]['cpu']}, {rows[-1]['n_threads']} "
        f"threads; default settings of `enable` (`top_k={top_k}`); weights of one 4-bit GGUF file, which "
        "transformers dequantises to bfloat16. Times of the other programs include sampling; "
        "ours do not, and our cache holds random numbers."
    )


if __name__ == "__main__":
    sys.exit(guarded(main))
