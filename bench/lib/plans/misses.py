# SPDX-License-Identifier: Apache-2.0
"""A step's time in three tiers over the number of rows that are missing, and of heads that miss unevenly.

    python bench/plans.py misses            # from the rows that are kept
    python bench/plans.py misses --plan     # plan again: some minutes
    python bench/plans.py misses --write    # the table and the plot of docs/ipu_tables.md (needs matplotlib)

32 heads, S=16384, head_dim 128, an index of 4 bits, k=128, rows in fp16. Between two numbers of missing rows
the middle is planned too, as long as the times differ by more than a tenth. Times are modelled, with work on
chip low, likely and high.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Callable

import numpy as np

from sparq_ipu.commands import pictures
from sparq_ipu.commands.extras import needed
from sparq_ipu.commands.tables import markdown_table
from sparq_ipu.kernels import TIERED
from sparq_ipu.planning import plan

from ..common import ROOT, Row
from . import Seconds, kept_rows, write
from . import seconds_of as seconds_of_plan

RESULTS = ROOT / "bench/results/misses.json"
DOCUMENT = ROOT / "docs/ipu_tables.md"
PLOT = ROOT / "docs/on_chip_misses.png"
TOP_K = 128
SHAPE: dict[str, Any] = dict(
    n_heads=32, head_dim=128, seq_len=16384, rank=32, top_k=TOP_K, n_local=0, index_bits=4, row_bits=16
)
#: a step from one number of missing rows to the next that is in the rows: at most this
MOST = 1.1
#: numbers of missing rows that are planned at least, for a time that falls again
PARTS = 16


def even(total: int, n_heads: int) -> list[int]:
    return [total // n_heads + (head < total % n_heads) for head in range(n_heads)]


def in_turn(total: int, n_heads: int) -> list[int]:
    """The first head misses all that it can, then the next one."""
    return [min(max(total - head * TOP_K, 0), TOP_K) for head in range(n_heads)]


def uneven(total: int, n_heads: int) -> list[int]:
    """Heads at random, of which some miss often and some never; the same for every number."""
    rng = np.random.default_rng(0)
    order = np.repeat(np.arange(n_heads), TOP_K)
    often = rng.exponential(size=n_heads)[order]
    chosen = np.argsort(rng.exponential(size=len(order)) / often, kind="stable")[:total]
    return [int(n) for n in np.bincount(order[chosen], minlength=n_heads)]


PATTERNS: dict[str, Callable[[int, int], list[int]]] = {
    "every head as many": even,
    "at random, uneven": uneven,
    "one head after the other": in_turn,
}


def seconds_of(misses: list[int]) -> Seconds:
    return seconds_of_plan(
        plan(**SHAPE, n_kv_heads=len(misses), kernel=TIERED.name, misses=misses, baseline=False)
    )


def ratio(one: list[float], other: list[float]) -> float:
    """Of likely times, the longer one over the other."""
    return max(one[1], other[1]) / min(one[1], other[1])


def steepest(row: Row) -> float:
    """The most that the time changes by from one number of missing rows to the next one in the rows."""
    times = [seconds for _, seconds in row["points"]]
    return max(map(ratio, times, times[1:]))


def beyond_even(row: Row, rows: list[Row]) -> float:
    """The most that these misses take longer than as many of all heads alike. Between its numbers their time
    is taken to grow evenly."""
    (alike,) = (
        r for r in rows if r["pattern"] == "every head as many" and r["n_kv_heads"] == row["n_kv_heads"]
    )
    numbers, times = zip(*((n, seconds[1]) for n, seconds in alike["points"]))
    return max(float(seconds[1] / np.interp(n, numbers, times)) for n, seconds in row["points"])


def curve(n_kv_heads: int, pattern: str) -> Row:
    """Between two numbers of missing rows another one, where one time is more than MOST of the other."""
    every, of = n_kv_heads * TOP_K, PATTERNS[pattern]
    points = {total: seconds_of(of(total, n_kv_heads)) for total in (1, *range(0, every + 1, every // PARTS))}
    again = True
    while again:
        again = False
        numbers = sorted(points)
        for one, other in zip(numbers, numbers[1:]):
            if other - one > 1 and ratio(points[one], points[other]) > MOST:
                middle, again = (one + other) // 2, True
                points[middle] = seconds_of(of(middle, n_kv_heads))
        print(f"\r{n_kv_heads} KV heads, {pattern}: {len(points)}", end="", file=sys.stderr, flush=True)
    return {"n_kv_heads": n_kv_heads, "pattern": pattern, "points": sorted(points.items())}


def planned() -> list[Row]:
    rows = [curve(n_kv_heads, pattern) for n_kv_heads in (32, 8) for pattern in PATTERNS]
    print(file=sys.stderr)
    return rows


def table(rows: list[Row]) -> str:
    heads = (
        "KV heads",
        "misses",
        "points",
        "us, no misses",
        "us, all missed",
        "largest increase per miss",
        "maximum over even misses",
    )
    return markdown_table(
        heads,
        (
            (
                str(row["n_kv_heads"]),
                row["pattern"],
                str(len(row["points"])),
                *(f"{row['points'][end][1][1] * 1e6:.1f}" for end in (0, -1)),
                f"{steepest(row) - 1:.1%}",
                f"{beyond_even(row, rows) - 1:.1%}",
            )
            for row in rows
        ),
    )


def draw(rows: list[Row], path: Path) -> None:
    """Time over misses, with the range of work on chip where every head has as many."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    for axis, n_kv_heads in zip(axes, (32, 8)):
        for row in (r for r in rows if r["n_kv_heads"] == n_kv_heads):
            numbers, times = zip(*row["points"])
            low, likely, high = np.array(times).T * 1e6
            (line,) = axis.plot(numbers, likely, marker=".", label=row["pattern"])
            if row["pattern"] == "every head as many":
                axis.fill_between(numbers, low, high, alpha=0.15, color=line.get_color(), linewidth=0)
        axis.set(title=f"{n_kv_heads} KV heads", xlabel=f"rows missing, of {n_kv_heads * TOP_K:,}")
        axis.grid(alpha=0.3)
    axes[0].set(ylabel="us a step (modelled)", ylim=(0, None))
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    pictures.save(figure, path, rows, dpi=110)


def load_matplotlib() -> None:
    """Before some minutes of planning: it is needed for the plot."""
    with needed("bench/plans.py", is_command=True):
        import matplotlib

        matplotlib.use("Agg")


def main(arguments: list[str] | None = None) -> int:
    to_write, rows = kept_rows(__doc__, arguments, RESULTS, planned, load_matplotlib)
    print(table(rows))
    if to_write:
        write({(DOCUMENT, "misses"): table(rows)})
        draw(rows, PLOT)
    return 0
