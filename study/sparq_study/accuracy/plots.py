# SPDX-License-Identifier: Apache-2.0
"""Plots of a result file: quality against compression, needle maps.

Needs matplotlib.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np

from sparq_ipu.commands import pictures

from . import report
from .tasks import TASKS


@dataclasses.dataclass(frozen=True)
class Family:
    """Methods drawn alike.

    pattern: regular expression of their text. line: style of a line that joins them, for methods that differ
        in their transfer and in nothing else.
    """

    label: str
    pattern: str
    colour: str
    marker: str = "o"
    line: str = ""


# A method belongs to the first family that it matches.
FAMILIES = (
    Family(
        "SparQ, no mean value in layer 0, index of 8, 4 or 2 bits",
        r"sparq:.*mean_from=1,index",
        "tab:cyan",
        "s",
    ),
    Family("SparQ, no mean value in layer 0, int8 KV", r"sparq:.*mean_from=1,kv_bits", "tab:blue", "D"),
    Family("SparQ, no mean value in layer 0, tau = sqrt(d)", r"sparq:.*mean_from=1,tau=sqrt_d", "navy", "v"),
    Family("SparQ, no mean value in layer 0, tau = sqrt(r)", r"sparq:.*mean_from=1,tau=sqrt_r", "navy", "^"),
    Family("SparQ, no mean value in layer 0", r"sparq:.*mean_from=1", "tab:blue", "o", "-"),
    Family("SparQ, no mean value", r"sparq:.*mean_from=-1", "tab:blue", "X"),
    Family("SparQ, tau = sqrt(d)", r"sparq:.*tau=sqrt_d", "tab:olive", "v"),
    Family("SparQ, tau = sqrt(r)", r"sparq:.*tau=sqrt_r", "tab:olive", "^"),
    Family("SparQ, tau = 1", r"sparq:.*tau=none", "tab:olive", "P"),
    Family("SparQ as published", r"sparq", "tab:green", "o", "-"),
    Family("H2O", r"h2o", "tab:red", "o", "-"),
    Family("LM-Infinite", r"lm_infinite", "tab:purple", "o", "-"),
    Family("ALISA, int8 KV", r"alisa:.*kv_bits", "tab:orange", "D"),
    Family("ALISA", r"alisa", "tab:orange", "o", "-"),
    Family("local", r"local", "tab:gray", "x"),
    Family("strided", r"strided", "tab:gray", "+"),
    Family("FlexGen top-k", r"flexgen", "black", "*"),
    Family("oracle top-k, no mean value in layer 0", r"oracle:.*mean_from=1", "tab:brown", "X"),
    Family("oracle top-k", r"oracle", "tab:brown"),
    Family("random low-rank keys, no mean value in layer 0", r"low_rank:.*mean_from=1", "tab:pink", "X"),
    Family("random low-rank keys", r"low_rank", "tab:pink"),
    Family("Quest", r"quest", "tab:red", "s", "-"),
    Family("Double Sparsity", r"double_sparsity", "tab:purple", "s", "-"),
    Family("dense, int8 KV", r"dense:.*kv_bits", "black", "D"),
    Family("dense", r"dense", "black"),
)


def family(method: str) -> int:
    """Index into FAMILIES."""
    for i, entry in enumerate(FAMILIES):
        if re.match(entry.pattern, method):
            return i
    raise ValueError(f"plots: method must belong to a family, got {method!r}")


def draw(lines: list[dict[str, Any]], folder: Path) -> list[Path]:
    """Write every plot that the lines allow; returns the files."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"font.size": 9, "savefig.dpi": 100})
    folder.mkdir(parents=True, exist_ok=True)
    written = [_curves(lines, folder / "accuracy_curves.png")]
    if "needle" in lines[0]["plan"]["tasks"]:
        written.append(_needles(lines, folder / "accuracy_needles.png"))
    return written


def _curves(lines: list[dict[str, Any]], path: Path) -> Path:
    """Main metric of each task against compression, joined within families (the paper's figures A1 to A3)."""
    import matplotlib.pyplot as plt

    tasks = list(lines[0]["plan"]["tasks"])
    columns = min(4, len(tasks))
    rows = -(-len(tasks) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.6 * columns, 3.2 * rows + 1.2), squeeze=False)
    for axis, task in zip(axes.flat, tasks):
        question = TASKS[task].questions[-1]  # the harder way: everything decoded by the method
        metric = TASKS[task].metrics[0]
        points: dict[int, list[tuple[float, float, float, float]]] = {}
        for method, items in report.select(lines, task, question).items():
            value = report.estimate(items, metric)
            known = report.has_interval(value)
            low, high = (value.low, value.high) if known else (value.value, value.value)
            point = (report.compression(items), value.value, low, high)
            points.setdefault(family(method), []).append(point)
        for index in sorted(points):
            entry = FAMILIES[index]
            x, y, low, high = np.array(sorted(points[index])).T
            error = np.maximum([y - low, high - y], 0)
            axis.errorbar(
                x, y, error, marker=entry.marker, markersize=4.5, linewidth=1, elinewidth=0.5,
                linestyle=entry.line or "none", color=entry.colour, label=entry.label,
            )  # fmt: skip
        better = "lower is better" if metric.better == "low" else "higher is better"
        axis.set_title(f"{task}: {metric.name} ({better})", fontsize=9)
        axis.set(xscale="log", xlabel="compression of the transfer")
        ticks = [1, 2, 4, 8, 16]
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        if task == "lm":
            axis.set_yscale("symlog", linthresh=0.01)
            axis.set_ylim(bottom=0)
    for axis in axes.flat[len(tasks) :]:
        axis.axis("off")
    handles: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, label in zip(*axis.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    order = [entry.label for entry in FAMILIES if entry.label in handles]
    figure.legend(
        [handles[label] for label in order], order, loc="lower center", ncols=4, fontsize=8, frameon=False
    )
    legend_rows = -(-len(order) // 4)
    height = figure.get_size_inches()[1]
    figure.tight_layout(rect=(0, (0.17 * legend_rows + 0.1) / height, 1, 1))
    return pictures.save(figure, path, lines, bbox_inches="tight")


def _needles(lines: list[dict[str, Any]], path: Path) -> Path:
    """Digits found by depth and length, one map per method (the paper's figure A4)."""
    import matplotlib.pyplot as plt

    by_method = report.select(lines, "needle", TASKS["needle"].questions[-1])
    columns = min(7, len(by_method))
    rows = -(-len(by_method) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(1.9 * columns, 1.75 * rows + 0.6), squeeze=False, layout="constrained"
    )
    for axis in axes.flat:
        axis.axis("off")
    for at_axis, (axis, (method, items)) in enumerate(zip(axes.flat, by_method.items())):
        cells = [line for line in items.values() if "depth" in line]
        depths = sorted({line["depth"] for line in cells})
        lengths = sorted({line["length"] for line in cells})
        hits, n = np.zeros((2, len(depths), len(lengths)))
        for line in cells:
            at = depths.index(line["depth"]), lengths.index(line["length"])
            hits[at] += line["sums"]["hits"]
            n[at] += line["sums"]["n"]
        share = hits / np.maximum(n, 1)
        axis.axis("on")
        # of one hue, light to dark, so that it can be read without colour vision and on paper
        image = axis.imshow(share, vmin=0, vmax=1, cmap="Blues", aspect="auto")
        for (i, j), count in np.ndenumerate(n):
            if count:
                text = f"{hits[i, j]:.0f}/{count:.0f}"
                colour = "white" if share[i, j] > 0.6 else "black"
                axis.text(j, i, text, ha="center", va="center", fontsize=6, color=colour)
        axis.set_xticks(range(len(lengths)), [str(length) for length in lengths], fontsize=6)
        axis.set_yticks(range(len(depths)), [f"{depth:.0%}" for depth in depths], fontsize=6)
        axis.set_title(method.replace("@", "\n@").replace(",tau", ",\ntau"), fontsize=6.5)
        if at_axis % columns == 0:
            axis.set_ylabel("depth", fontsize=7)
        if at_axis + columns >= len(by_method):
            axis.set_xlabel("tokens", fontsize=7)
    figure.colorbar(image, ax=axes, shrink=0.5, aspect=30, pad=0.01, label="digits right")
    figure.suptitle("needle: digits right of those asked for, whole prompt decoded by the method", fontsize=9)
    return pictures.save(figure, path, lines, bbox_inches="tight")
