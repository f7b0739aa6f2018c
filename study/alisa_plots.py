# SPDX-License-Identifier: Apache-2.0
"""Figures like the paper's 9 and 12, from the published lines: study/alisa.py --plots."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

import numpy as np
from alisa_lines import SPARSITIES, Line, timeline_of, variants

from sparq_ipu.commands import pictures
from sparq_study.alisa import RECOMPUTE


def draw(lines: Sequence[Line], folder: Path) -> None:
    """alisa_throughput.png and alisa_phases.png."""
    import matplotlib

    matplotlib.use("Agg")
    _throughput(lines, folder / "alisa_throughput.png")
    _phases(lines, folder / "alisa_phases.png")


def _throughput(lines: Sequence[Line], path: Path) -> None:
    """Tokens a second over the batch, a picture for each model and machine, costs as stated."""
    import matplotlib.pyplot as plt

    runs = [line for line in lines if line["kind"] == "speedup" and line["costs"] == "stated"]
    series = list(dict.fromkeys((line["model"], line["machine"]) for line in runs))
    figure, axes = plt.subplots(2, -(-len(series) // 2), figsize=(16, 6.4))
    names = {"offload_everything": "all slow", "flexgen": "FlexGen", "all_fast": "all fast", "alisa": "ALISA"}
    for axis, (model, machine) in zip(axes.flat, series):
        own = [line for line in runs if (line["model"], line["machine"]) == (model, machine)]
        for i, (name, label) in enumerate(names.items()):
            speeds = [0 if line[name] is None else line["tokens"] / line[name] for line in own]
            axis.bar(np.arange(len(own)) + 0.2 * i - 0.3, speeds, 0.2, label=label)
        for i, line in enumerate(own):
            axis.text(i, line["tokens"] / line["alisa"], f"{line['speedup']:.1f}x", ha="center", fontsize=7)
        axis.set_xticks(range(len(own)), [str(line["batch"]) for line in own])
        axis.set(title=f"{model}, {machine}", xlabel="batch")
        axis.grid(alpha=0.3, axis="y")
    for axis in axes[:, 0]:
        axis.set_ylabel("tokens/s (modelled)")
    axes.flat[0].legend(fontsize=8)
    figure.tight_layout()
    pictures.save(figure, path, lines, dpi=90)


def _phases(lines: Sequence[Line], path: Path) -> None:
    """OPT-30B, batch 64, H100: seconds a step; bytes; the gain of recomputation; the ablation."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(18, 4))
    costs = variants()["stated"]
    for sparsity in SPARSITIES:
        run, dense = timeline_of(sparsity, costs)
        axes[0].plot(1e3 * run.steps, label=f"ALISA, {sparsity:.0%}")
    axes[0].plot(1e3 * dense.steps, "k--", label="FlexGen")
    axes[0].set(xlabel="step", ylabel="ms (modelled)", yscale="log", title="time of a step")
    axes[1].plot(run.fast_bytes / 1e9, label="ALISA, fast")
    axes[1].plot(run.slow_bytes / 1e9, label="ALISA, slow")
    axes[1].plot(dense.fast_bytes / 1e9, "--", label="FlexGen, fast")
    axes[1].plot(dense.slow_bytes / 1e9, "--", label="FlexGen, slow")
    axes[1].axhline(costs.room(run.work) / 1e9, color="r", linestyle=":", label="room")
    axes[1].set(xlabel="step", ylabel="GB", title="keys and values, 80 % sparsity")
    for source in RECOMPUTE:
        gains = [
            line["gain"][source]
            for line in lines
            if line["kind"] == "recompute" and line["bits"] == 16 and line["costs"] == "stated"
        ]
        axes[2].plot([f"{s:.0%}" for s in SPARSITIES], gains, "-o", label=source)
    axes[2].axhspan(1.2, 1.3, alpha=0.2, color="k", label="paper")
    axes[2].set(xlabel="KV sparsity", title="gain of recomputation, 16 bits")
    for line in lines:
        if line["kind"] == "ablation" and line["costs"] == "stated":
            steps = [line["seconds"][0] / s for s in line["seconds"]]
            axes[3].plot(
                ["FlexGen", "sparse", "scheduled", "INT8"], steps, "-o", label=f"{line['sparsity']:.0%}"
            )
    axes[3].set(title="speed-up as techniques are added", yscale="log")
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    figure.suptitle("OPT-30B, batch 64, H100, 128 in, 512 out")
    figure.tight_layout()
    pictures.save(figure, path, lines, dpi=90)
