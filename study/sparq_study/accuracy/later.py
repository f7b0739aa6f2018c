# SPDX-License-Identifier: Apache-2.0
"""The generated block of docs/accuracy_later.md: methods that came after SparQ, at equal bytes.

Each model and length has a file of lines, `study/results/later_*.jsonl`, by `study/accuracy.py --later`.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Container, Dict, Sequence

from sparq_ipu.commands.tables import markdown_table

from . import report
from .plan import LATER, LATER_LEVELS, LATER_OTHERS
from .tasks import TASKS

Items = Dict[int, Dict[str, Any]]
KL = TASKS["lm"].metrics[0]
OURS = next(iter(LATER))


def title(lines: list[dict[str, Any]]) -> str:
    """Model, length and contexts of a file."""
    found = report.select(lines, "lm", "sparse")["dense"]
    length = next(iter(found.values()))["seq_len"]
    return f"{lines[0]['model']}, {length:,} positions, {len(found)} contexts"


def run(found: Container[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Levels that a file has, and its methods at them: great lengths and models have some of both."""
    levels = [level in found for level in LATER_LEVELS]
    at_levels = {name: list(itertools.compress(methods, levels)) for name, methods in LATER.items()}
    return at_levels[OURS], {
        name: methods for name, methods in at_levels.items() if all(m in found for m in methods)
    }


def share_for(kl: float, points: Sequence[tuple[float, float]]) -> str:
    """The share of dense attention's bytes at which a method would reach a KL, between its points.

    points: (share, KL) by rising share. Between two of them both are taken to follow a power law.
    """
    if kl >= points[0][1]:
        return f"at most {100 * points[0][0]:.1f} %"
    for (less, high), (more, low) in zip(points, points[1:]):
        if low <= kl < high:
            part = math.log(high / kl) / math.log(high / low)
            return f"{100 * less * (more / less) ** part:.1f} %"
    return f"more than {100 * points[-1][0]:.1f} %"


def kl_table(lines: list[dict[str, Any]]) -> str:
    """KL of each method at each level, and the bytes at which it would be as near as `RECOMMENDED`."""
    found = report.select(lines, "lm", "sparse")
    levels, methods_run = run(found)
    shares = [1 / report.compression(found[level]) for level in levels]
    goal = report.estimate(found[LATER_LEVELS[1]], KL).value
    rows = []
    for name, methods in methods_run.items():
        values = [report.estimate(found[method], KL) for method in methods]
        points = [(1 / report.compression(found[m]), value.value) for m, value in zip(methods, values)]
        rows.append([name, *(report.interval(value, KL.digits) for value in values), share_for(goal, points)])
    header = [
        "KL [95 %] at so much of dense attention's bytes",
        *(f"{100 * share:.1f} %" for share in shares),
    ]
    return markdown_table([*header, "bytes at the recommended settings' KL"], rows)


def gap(items: Items, base: Items) -> str:
    """The KL of one method less another's, in pairs of contexts; bold if it is clear."""
    difference = report.difference(items, base, KL)
    assert difference is not None
    text = report.interval(difference, KL.digits, "+")
    return f"**{text}**" if report.clear(difference) else text


def gap_table(lines: list[dict[str, Any]]) -> str:
    """Each method less SparQ at the same level, in pairs of contexts; bold where it is clear."""
    found = report.select(lines, "lm", "sparse")
    levels, methods_run = run(found)
    rows = [
        [name, *(gap(found[method], found[level]) for method, level in zip(methods, levels))]
        for name, methods in methods_run.items()
        if name != OURS
    ]
    return markdown_table([f"KL less that of {OURS}", *(f"`{level}`" for level in levels)], rows)


def others_table(lines: list[dict[str, Any]]) -> str:
    """What has no level; empty if the file has none of it."""
    found = report.select(lines, "lm", "sparse")
    rows = []
    for method in filter(found.__contains__, LATER_OTHERS):
        share = 100 / report.compression(found[method])
        kl = report.interval(report.estimate(found[method], KL), KL.digits)
        rows.append([f"`{method}`", f"{share:.1f} %", kl, gap(found[method], found[LATER_LEVELS[1]])])
    header = ["method", "of dense attention's bytes", "KL [95 %]", f"less that of `{LATER_LEVELS[1]}`"]
    return markdown_table(header, rows) if rows else ""


def tables(files: Sequence[list[dict[str, Any]]]) -> str:
    """The tables of every file, by model and length."""
    ordered = sorted(
        files, key=lambda lines: (lines[0]["model"], lines[0]["plan"]["tasks"]["lm"].get("length", 0))
    )
    return "\n\n".join(
        part
        for lines in ordered
        for part in (f"**{title(lines)}**", kl_table(lines), gap_table(lines), others_table(lines))
        if part
    )
