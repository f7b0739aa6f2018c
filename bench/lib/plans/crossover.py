# SPDX-License-Identifier: Apache-2.0
"""Where SparQ pays on an IPU, and where dense attention is faster: models, lengths and numbers of IPUs.

    python bench/plans.py crossover            # from the rows that are kept
    python bench/plans.py crossover --plan     # plan again: half an hour
    python bench/plans.py crossover --write    # the tables and the plot of docs/ipu_crossover.md

Each time is that of attention in all layers for one token, in the fastest plan with at most so many IPUs:
layers or heads over them, or both where there are more than KV heads, as many layers on chip as fit, no
weights. SparQ has its recommended settings.
"With n IPUs" allows fewer, for a split over more can be slower. Times are modelled, with work on chip low,
likely and high.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import sys
from pathlib import Path
from typing import Any, Sequence

from sparq_ipu.commands import pictures
from sparq_ipu.commands.tables import markdown_table
from sparq_ipu.planning import ModelPlan, plan_model
from sparq_ipu.planning.model_shape import NO_WEIGHTS, shape_of

from ..common import ROOT, Row, git_revision
from . import kept_rows, write
from .misses import load_matplotlib

RESULTS = ROOT / "bench/results/crossover.json"
DOCUMENT, README = ROOT / "docs/ipu_crossover.md", ROOT / "README.md"
PLOT = ROOT / "docs/ipu_crossover.png"

LENGTHS = (4096, 8192, 16384, 32768, 65536, 131072)
MODELS = ("Llama-3-8B", "Llama-2-7B", "Llama-3.2-1B")
#: lengths of each batch: 8 caches of 16,384 positions are as large as one of 131,072
BATCHES = {1: LENGTHS, 8: (4096, 16384)}
POINTS = tuple((model, batch, n) for model in MODELS for batch, lengths in BATCHES.items() for n in lengths)
#: of the table, and those that are tried: 8 KV heads of batch 1 split over at most 8; layers split as fast
#: over 4 or 16 as over 8, to a transfer between IPUs
IPUS, TRIED = (1, 4, 16), {1: "auto", 4: "auto", 8: "heads", 16: "auto"}
HIT_RATE = 0.9
#: by name in a row: options of `plan_model`
PLANS: dict[str, dict[str, Any]] = {
    "dense": dict(attention="dense"),
    "dense_8_bits": dict(attention="dense", row_bits=8),
    "streaming": dict(attention="dense-streaming"),
    "sparq": dict(attention="best", hit_rate=HIT_RATE),
}


def none_hot(plan: ModelPlan) -> ModelPlan:
    """The same layers on chip, with every selected row read from streaming memory."""
    request = dataclasses.replace(plan.request, hit_rate=0.0)
    made: dict[int, Any] = {}
    for ipu in plan.ipus:
        if ipu.on_chip and ipu.n_on_chip not in made:
            made[ipu.n_on_chip] = request.layer(ipu.on_chip.request.kernel.name, ipu.n_on_chip)
    ipus = [dataclasses.replace(ipu, on_chip=made.get(ipu.n_on_chip)) for ipu in plan.ipus]
    return dataclasses.replace(plan, request=request, ipus=tuple(ipus))


def cell(plan: ModelPlan, groups: int) -> Row:
    """What a row keeps of a plan for each of `groups` of IPUs, which work one after another."""
    n_on_chip, n_layers = plan.layers_on_chip
    return {
        "seconds": [groups * t for t in (plan.seconds_low, plan.seconds_per_step, plan.seconds_high)],
        "n_ipus": groups * plan.request.n_ipus,
        "split": plan.request.split if groups == 1 else "both",
        "on_chip": n_on_chip / n_layers,
    }


def cells_of(model: str, batch: int, seq_len: int, n_ipus: int, groups: int) -> dict[str, Row]:
    """What a row keeps of each plan that fits; with several `groups` of IPUs layers are split over them, and
    heads in each."""
    shape = shape_of("crossover", model)
    part = dataclasses.replace(shape, n_layers=-(-shape.n_layers // groups))
    split = TRIED[n_ipus] if groups == 1 else "heads"
    found = {}
    for name, options in PLANS.items():
        try:
            plan = plan_model(
                part,
                batch=batch,
                seq_len=seq_len,
                n_ipus=n_ipus // groups,
                split=split,
                weights=NO_WEIGHTS,
                **options,
            )
        except ValueError:  # neither layers nor heads split over so many
            continue
        if plan.fits:
            found[name] = cell(plan, groups)
            if name == "sparq":
                found["sparq_none_hot"] = cell(none_hot(plan), groups)
    return found


def rank(of: Row) -> float:
    """Seconds; a split of both, which no program does, must be 0.1 % faster."""
    return float(of["seconds"][1]) * (1.001 if of["split"] == "both" else 1)


def rows_of(model: str, batch: int, seq_len: int) -> list[Row]:
    """A row for each number of IPUs; a plan that does not fit is None."""
    n_kv_heads = shape_of("crossover", model).n_kv_heads
    groups = {n: sorted({1, max(1, n // n_kv_heads)}) for n in TRIED}
    tried = [cells_of(model, batch, seq_len, n, of) for n in TRIED for of in groups[n]]
    rows = []
    for most in IPUS:
        row: Row = {"model": model, "batch": batch, "seq_len": seq_len, "n_ipus": most}
        for name in (*PLANS, "sparq_none_hot"):
            fitting = [of[name] for of in tried if name in of and of[name]["n_ipus"] <= most]
            row[name] = min(fitting, key=rank, default=None)
        rows.append(row)
    return rows


def planned() -> list[Row]:
    rows: list[Row] = []
    git = git_revision()
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        for i, made in enumerate(pool.map(rows_of, *zip(*POINTS)), 1):
            rows += [{**row, "git": git} for row in made]
            print(f"\r{i}/{len(POINTS)} planned", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return rows


def factors(row: Row, over: str = "dense") -> list[float]:
    """How much faster SparQ is than another plan, with work on chip of both low, likely and high; empty where
    one of them does not fit."""
    if row[over] is None or row["sparq"] is None:
        return []
    return [other / own for other, own in zip(row[over]["seconds"], row["sparq"]["seconds"])]


def verdict(row: Row) -> str:
    """Which is faster at both ends of the range; "even" where the ends differ."""
    found = factors(row)
    if not found:
        return "-"
    return "SparQ" if min(found) > 1 else "dense" if max(found) < 1 else "even"


def milliseconds(row: Row, name: str) -> str:
    of = row[name]
    if of is None:
        return "-"
    ms = of["seconds"][1] * 1e3
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def how(row: Row, name: str) -> str:
    """IPUs and split of a plan, and its share of layers on chip."""
    of = row[name]
    if of is None:
        return "-"
    ipus = f"{of['n_ipus']}, {of['split']}" if of["n_ipus"] > 1 else "1"
    return f"{ipus}; {of['on_chip']:.0%}"


def table(rows: Sequence[Row]) -> str:
    header = ("model", "batch", "positions", "IPUs", "dense ms", "dense: IPUs, split; on chip")
    header += ("SparQ ms", "SparQ: IPUs, split; on chip", "SparQ ms, no row hot", "faster", "over dense")
    header += ("over dense of 8 bits, bound", "over dense-streaming")

    def times(ratios: Sequence[float]) -> str:
        return f"{ratios[1]:.3g}x" if ratios else "-"

    return markdown_table(
        header,
        (
            (
                row["model"],
                str(row["batch"]),
                f"{row['seq_len']:,}",
                str(row["n_ipus"]),
                milliseconds(row, "dense"),
                how(row, "dense"),
                milliseconds(row, "sparq"),
                how(row, "sparq"),
                milliseconds(row, "sparq_none_hot"),
                verdict(row),
                *(times(factors(row, over)) for over in ("dense", "dense_8_bits", "streaming")),
            )
            for row in rows
        ),
    )


def where(rows: Sequence[Row]) -> str:
    """For each model and batch, from which length on SparQ is faster wherever both plans fit."""

    def cell(model: str, batch: int, n_ipus: int) -> str:
        of_machine = {"model": model, "batch": batch, "n_ipus": n_ipus}
        chosen = [row for row in rows if all(row[name] == value for name, value in of_machine.items())]
        losses = [i for i, row in enumerate(chosen) if verdict(row) in ("dense", "even")]
        wins = [row["seq_len"] for row in chosen[losses[-1] + 1 if losses else 0 :] if factors(row)]
        return f"from {wins[0]:,}" if wins else f"not up to {chosen[-1]['seq_len']:,}"

    header = ("model", "KV heads", "batch", *(f"{n} IPU{'s' if n > 1 else ''}" for n in IPUS))
    body = []
    for model in MODELS:
        shape = shape_of("crossover", model)
        heads = f"{shape.n_kv_heads} of {shape.head_dim}"
        body += [(model, heads, str(b), *(cell(model, b, n) for n in IPUS)) for b in BATCHES]
    return markdown_table(header, body)


def sentence(rows: Sequence[Row]) -> str:
    """The README's: one shape where SparQ is faster than the best dense plan, and one where it is not."""

    def told(seq_len: int) -> str:
        shape = {"model": "Llama-3-8B", "batch": 1, "seq_len": seq_len, "n_ipus": 4}
        row = next(row for row in rows if all(row[name] == value for name, value in shape.items()))
        dense, sparq = milliseconds(row, "dense"), milliseconds(row, "sparq")
        return f"{dense} ms a token in the best fp16 dense plan and {sparq} ms with SparQ"

    return (
        "Dense attention is usually faster where SRAM holds the cache. For Llama-3-8B on 4 IPUs after "
        f"16,384 tokens attention takes {told(16384)}.\nSparQ is faster where SRAM does not hold it. "
        f"After 65,536 tokens, attention takes {told(65536)}: it reads 256 rows, {HIT_RATE:.0%} of which "
        "are assumed to be in SRAM since an earlier token."
    )


def lines(rows: Sequence[Row]) -> dict[str, list[tuple[int, float]]]:
    """What the plot shows, of batch 1: the factor over the best dense plan by length."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row["batch"] == 1 and factors(row):
            name = f"{row['model']}, {row['n_ipus']}"
            found.setdefault(name, []).append((row["seq_len"], round(factors(row)[1], 4)))
    return found


def draw(rows: Sequence[Row], path: Path = PLOT) -> Path:
    """The plot: a panel for each model, a line for each number of IPUs, batch 1."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = lines(rows)
    colours = dict(zip(IPUS, ("tab:red", "tab:blue", "tab:green")))
    figure, axes = pyplot.subplots(1, len(MODELS), figsize=(12, 4.4), sharey=True)
    for axis, model in zip(axes, MODELS):
        axis.axhline(1, color="0.4", linewidth=1)
        for n_ipus in IPUS:
            points = shown.get(f"{model}, {n_ipus}", [])
            label = f"{n_ipus} IPU{'s' if n_ipus > 1 else ''}"
            axis.plot(*zip(*points), color=colours[n_ipus], marker="o", markersize=4, label=label)
        axis.set(title=model, xscale="log", yscale="log", xlabel="positions")
        axis.set_xticks(LENGTHS, [f"{n // 1024}K" for n in LENGTHS])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("time of the best dense plan / time of SparQ")
    ticks = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)
    axes[0].set_yticks(ticks, [f"{t:g}x" for t in ticks])
    axes[0].yaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=3, frameon=False)
    figure.suptitle(
        f"Attention of a token, batch 1, modelled: above 1x SparQ is faster ({HIT_RATE:.0%} of its rows hot)",
        fontsize=11,
    )
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    return pictures.save(figure, path, shown, dpi=120)


def main(arguments: list[str] | None = None) -> int:
    to_write, rows = kept_rows(__doc__, arguments, RESULTS, planned, load_matplotlib)
    print(table(rows))
    if to_write:
        write({(DOCUMENT, "crossover"): table(rows), (DOCUMENT, "where"): where(rows)})
        write({(README, "ipu"): sentence(rows)})
        draw(rows)
    return 0
