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
from typing import Dict, Iterable, List, NamedTuple

from lib.common import ROOT, Parser, Row, guarded
from lib.decode_tables import PEERS, fastest_runs, model_name, read_rows

from sparq_ipu.commands import pictures
from sparq_ipu.commands.tables import markdown_table, replace_block

README, PICTURE = ROOT / "README.md", ROOT / "docs/headline.png"
#: new tokens after the prompt
NEW_TOKENS = 256
#: the model of usual size, and the rows of its shape
LARGE, SIZES = "llama-3-8b", ROOT / "bench/results/sizes.jsonl"


class Way(NamedTuple):
    """A line of the picture: rows of this method, or of a form of it (plain-sdpa), with these weights."""

    label: str
    method: str
    dtype: str
    colour: str


DEFAULT = Way("SparQ, default settings (int4)", "recommended", "int4", "tab:red")
DENSE = Way("dense, our cache and kernels (int4)", "dense", "int4", "tab:blue")
OTHERS = (
    Way("OpenVINO GenAI (the file's weights)", "openvino", "gguf", "tab:green"),
    Way("OpenVINO GenAI with XAttention", "openvino-xattention", "gguf", "tab:olive"),
    Way("llama.cpp (the file's weights)", "llama.cpp", "gguf", "tab:orange"),
    Way("transformers (bfloat16)", "plain", "bfloat16", "tab:gray"),
)
SHORT = {
    "openvino": "OpenVINO",
    "openvino-xattention": "OpenVINO with XAttention",
    "llama.cpp": "llama.cpp",
    "plain": "transformers",
}


class Point(NamedTuple):
    """A row: what one way takes at one length."""

    tokens_per_second: float
    #: to the first token; None: not measured
    first: float | None

    @property
    def total(self) -> float | None:
        """Seconds for the prompt and the new tokens."""
        return None if self.first is None else self.first + (NEW_TOKENS - 1) / self.tokens_per_second


Here = Dict[str, List[Point]]  # method of a way -> its rows at a length
Points = Dict[str, Dict[int, Here]]  # model -> positions -> rows


def fastest(rows: list[Point]) -> Point:
    """The row with most tokens per second."""
    return max(rows, key=lambda point: point.tokens_per_second)


def least(seconds: Iterable[float | None]) -> float | None:
    """The least of what was measured."""
    return min((x for x in seconds if x is not None), default=None)


def comparable(rows: list[Row]) -> list[Row]:
    """The rows that were measured on the processor of the last one."""
    worked = [row for row in rows if row["error"] is None and row["tokens_per_second"] is not None]
    if not any(row["method"] == DEFAULT.method for row in worked):
        raise ValueError(f"headline: rows must have the method {DEFAULT.method!r}, got none")
    return [row for row in worked if row["cpu"] == worked[-1]["cpu"]]


def way_of(row: Row) -> Way | None:
    """The way of a row: that with the longest name that its method begins with."""
    ways = [
        way
        for way in (DEFAULT, DENSE, *OTHERS)
        if f"{row['method']}-".startswith(f"{way.method}-") and row["dtype"] == way.dtype
    ]
    return max(ways, key=lambda way: len(way.method), default=None)


def points(rows: list[Row]) -> Points:
    """The rows of each way, by model and length. Our two ways read a prompt with the same code: where one was
    not timed, it has the time of the other."""
    found: Points = {}
    for row in rows:
        here = found.setdefault(row["model"], {}).setdefault(row["seq_len"], {})
        way = way_of(row)
        if way is not None:
            point = Point(row["tokens_per_second"], row["first_token_seconds"])
            here.setdefault(way.method, []).append(point)
    for lengths in found.values():
        for here in lengths.values():
            ours = [point for way in (DEFAULT, DENSE) for point in here.get(way.method, [])]
            first = least(point.first for point in ours)
            for way in (DEFAULT, DENSE):
                if way.method in here:
                    row = fastest(here[way.method])
                    here[way.method] = [row if row.first is not None else row._replace(first=first)]
    return found


class Line(NamedTuple):
    """A model at a length: ours, and of the other programs the fastest, and the one with its answer first."""

    model: str
    seq_len: int
    ours: Point
    dense: Point
    best: tuple[str, float]
    soonest: tuple[str, float] | None
    #: of each other program whose shorter answers end sooner, the first that does not; infinite: all do
    least_answers: dict[str, float]

    def gains(self) -> tuple[float, float, float]:
        """Over the fastest other program; that of cache and kernels alone; that of sparsity."""
        speed, dense, best = self.ours.tokens_per_second, self.dense.tokens_per_second, self.best[1]
        return speed / best, dense / best, speed / dense


def least_answer(ours: Point, other: Point) -> float:
    """New tokens from which on we end before the other."""
    late = 0.0 if ours.first is None or other.first is None else ours.first - other.first
    saved = 1 / other.tokens_per_second - 1 / ours.tokens_per_second
    return 1 if late <= 0 else math.inf if saved <= 0 else 1 + math.ceil(late / saved)


def lines_of(found: Points) -> list[Line]:
    """What can be compared: lengths with our ways and another program."""
    lines = []
    for model in sorted(found, key=lambda name: (min(found[name]), name)):
        for seq_len, here in sorted(found[model].items()):
            others = {SHORT[way.method]: here[way.method] for way in OTHERS if way.method in here}
            if DEFAULT.method in here and DENSE.method in here and others:
                speeds = [(name, fastest(rows).tokens_per_second) for name, rows in others.items()]
                totals = [(name, least(point.total for point in rows)) for name, rows in others.items()]
                timed = [(name, total) for name, total in totals if total is not None]
                ours, dense = here[DEFAULT.method][0], here[DENSE.method][0]
                best = max(speeds, key=lambda of: of[1])
                soonest = min(timed, key=lambda of: of[1], default=None)
                answers = {
                    name: max(least_answer(ours, point) for point in rows) for name, rows in others.items()
                }
                late = {name: tokens for name, tokens in answers.items() if tokens > 1}
                lines.append(Line(model, seq_len, ours, dense, best, soonest, late))
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
    """How long we take to read a prompt, beside each program that is faster at some length, and what that
    costs."""
    ratios: dict[str, list[float]] = {}
    for here in (here for lengths in found.values() for here in lengths.values() if DEFAULT.method in here):
        ours = here[DEFAULT.method][0].first
        for way in OTHERS:
            other = least(point.first for point in here.get(way.method, []))
            if ours is not None and other is not None:
                ratios.setdefault(SHORT[way.method], []).append(ours / other)
    parts = [
        f"{min(of_program):.2f} to {max(of_program):.2f} times as long as {name}"
        for name, of_program in ratios.items()
        if max(of_program) > 1
    ]
    if not parts:
        return "SparQ does not speed up prefill."
    text = f"SparQ does not speed up prefill: to read a prompt we take {' and '.join(parts)}."
    late = [line for line in lines_of(found) if line.least_answers]
    if late:
        line = max(late, key=lambda line: line.seq_len)
        ends = [
            f"{name} with {f'answers of under {tokens:,} tokens' if math.isfinite(tokens) else 'all answers'}"
            for name, tokens in line.least_answers.items()
        ]
        text += f" After {line.seq_len:,} tokens these are done sooner: {', '.join(ends)}."
    return text


def sparsity_of(model: str, rows: list[Row]) -> dict[tuple[int, int], float]:
    """The rate of SparQ over that of dense attention, by texts at once and positions."""
    return {
        (batch, n): run["dense"]["seconds_per_step"] / run["recommended"]["seconds_per_step"]
        for (name, batch, n), run in fastest_runs(rows).items()
        if name == model
    }


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
    sizes = read_rows(SIZES)
    large = sparsity_of(LARGE, sizes)
    run = fastest_runs(sizes)[LARGE, 1, 8192]
    other = min((name for name in SHORT if name in run), key=lambda name: run[name]["seconds_per_step"])
    times = run[other]["seconds_per_step"] / run["recommended"]["seconds_per_step"]
    return (
        f"{text}\n* **Larger models gain less,** because weights outweigh the cache: with 4-bit weights and "
        f"the shape of Llama-3-8B, sparsity gives a factor of {large[1, 8192]:.2f} after 8,192 tokens, "
        f"{large[1, 32768]:.2f} after 32,768, and {large[8, 8192]:.2f} for eight texts of 8,192 at once. "
        f"After 8,192 it decodes {times:.2f} times as fast as {SHORT[other]} "
        "([measured](docs/benchmarks.md#models-of-several-sizes))."
    )


def shown(found: Points) -> tuple[str, dict[str, list[tuple[int, tuple[float, float | None]]]]]:
    """The model of the picture, and each line: length, tokens per second, seconds of a whole answer."""
    model = max(found, key=lambda name: (len(found[name]), max(found[name])))
    return model, {
        way.method: [
            (n, (fastest(rows).tokens_per_second, least(point.total for point in rows)))
            for n, here in sorted(found[model].items())
            for rows in [here.get(way.method, [])]
            if rows
        ]
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
        speeds = [(n, speed) for n, (speed, _) in lines[way.method]]
        totals = [(n, total) for n, (_, total) in lines[way.method] if total is not None]
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
    seconds = [total for line in lines.values() for _, (_, total) in line if total is not None]
    ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500) if min(seconds) / 2 < t < max(seconds) * 2]
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
