# SPDX-License-Identifier: Apache-2.0
"""Plots of a result file: quality against compression, needle maps, attention statistics. Needs
matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from . import report
from .tasks import TASKS

# Families of methods, by how their text starts; the first that fits counts. Order = colour.
FAMILIES = (
    ("SparQ, mean value from layer 1, small index", ("sparq:mean_from=1,index",)),
    ("SparQ, mean value from layer 1", ("sparq:mean_from=1", "sparq:r=16,mean_from=1")),
    ("SparQ, no mean value", ("sparq:r=16,mean_from=-1",)),
    ("SparQ, other temperature", ("sparq:r=16,tau",)),
    ("SparQ", ("sparq",)),
    ("H2O", ("h2o",)),
    ("LM-Infinite", ("lm_infinite",)),
    ("ALISA", ("alisa",)),
    ("local", ("local",)),
    ("strided", ("strided",)),
    ("FlexGen top-k", ("flexgen",)),
    ("oracle top-k", ("oracle",)),
    ("random low-rank keys", ("low_rank",)),
    ("dense, int8 KV", ("dense:kv_bits",)),
    ("dense", ("dense",)),
)


def family(method: str) -> int:
    """Index into FAMILIES."""
    for i, (_, starts) in enumerate(FAMILIES):
        if any(method.startswith(start) for start in starts):
            return i
    raise ValueError(f"plots: method must belong to a family, got {method!r}")


def draw(lines: list[dict[str, Any]], folder: Path) -> list[Path]:
    """Write every plot that the lines allow; returns the files."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"font.size": 9, "savefig.dpi": 100})
    folder.mkdir(parents=True, exist_ok=True)
    if lines[0]["plan"].get("statistics"):
        return [_statistics(lines, folder / "attention_statistics.png")]
    written = [_curves(lines, folder / "accuracy_curves.png")]
    if "needle" in lines[0]["plan"]["tasks"]:
        written.append(_needles(lines, folder / "accuracy_needles.png"))
    return written


def _save(figure: Any, path: Path) -> Path:
    import matplotlib.pyplot as plt

    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)
    return path


def _curves(lines: list[dict[str, Any]], path: Path) -> Path:
    """Main metric of each task against compression, one colour per family (the paper's figures A1 to A3)."""
    import matplotlib.pyplot as plt

    tasks = list(lines[0]["plan"]["tasks"])
    columns = min(4, len(tasks))
    rows = -(-len(tasks) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.4 * columns, 3 * rows + 0.8), squeeze=False)
    colours = plt.get_cmap("tab20")
    for axis, task in zip(axes.flat, tasks):
        question = TASKS[task].questions[-1]  # the harder way: everything decoded by the method
        metric = TASKS[task].metrics[0]
        points: dict[int, list[tuple[float, float, float, float]]] = {}
        for method, items in report.select(lines, task, question).items():
            value = report.estimate(items, metric)
            known = value.n >= report.FEWEST
            low, high = (value.low, value.high) if known else (value.value, value.value)
            point = (report.compression(items), value.value, low, high)
            points.setdefault(family(method), []).append(point)
        for index in sorted(points):
            x, y, low, high = np.array(sorted(points[index])).T
            error = np.maximum([y - low, high - y], 0)
            axis.errorbar(
                x, y, error, marker="o", markersize=3, linewidth=1, elinewidth=0.4,
                color=colours(index), label=FAMILIES[index][0],
            )  # fmt: skip
        axis.set(title=f"{task}: {metric.name}", xscale="log", xlabel="compression")
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
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=5, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    return _save(figure, path)


def _needles(lines: list[dict[str, Any]], path: Path) -> Path:
    """Digits found by depth and length, one map per method (the paper's figure A4)."""
    import matplotlib.pyplot as plt

    by_method = report.select(lines, "needle", TASKS["needle"].questions[-1])
    columns = 7
    rows = -(-len(by_method) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(1.9 * columns, 1.7 * rows), squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for axis, (method, items) in zip(axes.flat, by_method.items()):
        cells = [line for line in items.values() if "depth" in line]
        depths = sorted({line["depth"] for line in cells})
        lengths = sorted({line["length"] for line in cells})
        hits, n = np.zeros((2, len(depths), len(lengths)))
        for line in cells:
            at = depths.index(line["depth"]), lengths.index(line["length"])
            hits[at] += line["sums"]["hits"]
            n[at] += line["sums"]["n"]
        axis.axis("on")
        axis.imshow(hits / np.maximum(n, 1), vmin=0, vmax=1, cmap="RdYlGn", aspect="auto")
        axis.set_xticks(range(len(lengths)), [str(length) for length in lengths], fontsize=6)
        axis.set_yticks(range(len(depths)), [f"{depth:.0%}" for depth in depths], fontsize=6)
        axis.set_title(method.replace("@", "\n@"), fontsize=6)
    figure.tight_layout()
    return _save(figure, path)


def _statistics(lines: list[dict[str, Any]], path: Path) -> Path:
    """Per-layer spread over heads, agreement, and alpha against true mass for each temperature."""
    import matplotlib.pyplot as plt

    rows = [line for line in lines if line["kind"] == "statistics"]
    layers = sorted({line["layer"] for line in rows})
    figure, axes = plt.subplots(2, 4, figsize=(14, 6.2))
    for axis, (key, title) in zip(
        axes[0],
        (
            ("top_mass", "mass of the 32 largest weights"),
            ("kurtosis", "excess kurtosis of query components"),
            ("beyond_3_sigma", "query components beyond 3 sigma"),
        ),
    ):
        for layer in layers:
            heads = np.mean([line[key] for line in rows if line["layer"] == layer], axis=0)
            axis.scatter([layer] * len(heads), heads, s=6, color="tab:blue", alpha=0.6)
        axis.set(title=title, xlabel="layer (one dot per query head)")
        axis.grid(alpha=0.3)
    axis = axes[0, 3]
    for key in rows[0]["agreement"]:
        rank, k = key.split(",")
        if k == "k=128":
            shares = [
                np.mean([line["agreement"][key] for line in rows if line["layer"] == n]) for n in layers
            ]
            axis.plot(layers, shares, label=rank, linewidth=1)
    axis.set(title="top-128 agreement", xlabel="layer", ylim=(0, 1))
    axis.legend(fontsize=7)
    axis.grid(alpha=0.3)
    for axis, temperature in zip(axes[1], rows[0]["coverage"]):
        for layer in layers:
            here = [line["coverage"][temperature] for line in rows if line["layer"] == layer]
            mass, alpha = (np.mean([line[key] for line in here], axis=0) for key in ("mass", "alpha"))
            axis.scatter(mass, alpha, s=6, color=plt.get_cmap("viridis")(layer / max(layers)), alpha=0.7)
        axis.plot([0, 1], [0, 1], color="black", linewidth=0.6)
        axis.set(
            title=f"alpha, temperature {temperature}",
            xlabel="true mass selected",
            xlim=(0, 1),
            ylim=(0, 1.02),
        )
        axis.grid(alpha=0.3)
    axes[1, 0].set_ylabel("alpha (one dot per query head; light = late layer)")
    figure.tight_layout()
    return _save(figure, path)
