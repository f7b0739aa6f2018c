# SPDX-License-Identifier: Apache-2.0
"""What a step in three tiers takes with the misses that were recorded, and whole models with it.

    python bench/plans.py recorded            # from the rows that are kept
    python bench/plans.py recorded --plan     # plan again: a few minutes
    python bench/plans.py recorded --write    # the tables of docs/ipu_plans.md and ipu_tables.md

The recorded decode steps are those of `bench/results/tiered_steps.jsonl` (three texts, two layers, k=128,
rows in fp16, 4 thousand positions) and of `bench/results/recorded_misses.jsonl` (four texts, eight layers, 16
thousand positions of another model), which `python study/reuse.py --misses` simulates. The share of the
selected rows that a step missed (the first step is left out) is applied to another shape, the same for every
KV head. The missing rows of a head are rounded up to a multiple of 4, so that fewer plans are needed. Times
are modelled, with work on chip low, likely and high.
"""

from __future__ import annotations

import functools
import json
import math
import sys
from typing import Any, Callable

from sparq_ipu.commands.tables import markdown_table
from sparq_ipu.kernels import BASELINE, DEFAULT, DENSE_SRAM, TIERED
from sparq_ipu.planning import plan, plan_model
from sparq_ipu.planning.model_shape import NO_WEIGHTS

from ..common import ROOT, Row
from . import Seconds, kept_rows, seconds_of, write
from .tiers import LAYERS, MODELS, STEPS, heads_of, placed_layers

RESULTS = ROOT / "bench/results/recorded.json"
PLANS, TABLES = ROOT / "docs/ipu_plans.md", ROOT / "docs/ipu_tables.md"
MISSES = ROOT / "bench/results/recorded_misses.jsonl"
#: positions before the recorded steps; those of the first are what models are planned with
BEFORE = (4096, 16384)
TOP_K = 128
#: columns of speed-ups
OVER = ("over the best dense plan", f"over {BASELINE.name}")
SETTINGS: dict[str, Any] = dict(rank=32, top_k=TOP_K, n_local=0, index_bits=4)
#: heads, KV heads, head_dim, positions, bits of rows; the last one is that of the model that was recorded
SHAPES = (
    *((32, n_kv_heads, 128, 16384, row_bits) for n_kv_heads in (32, 8) for row_bits in (16, 8)),
    (9, 3, 64, 4352, 16),
)
#: of them, those with the misses of the longer texts too
LONGER = SHAPES[0:4:2]
#: missing rows of a KV head are rounded up to so many
MISSES_STEP = 4


def missing_shares(before: int = BEFORE[0]) -> list[float]:
    """Of each recorded step but the first of a text and layer; of longer texts, the second half's."""
    if before != BEFORE[0]:
        longer = map(json.loads, MISSES.read_text().splitlines())
        return [misses / row["top_k"] for row in longer for misses in row["misses"]]
    rows = map(json.loads, STEPS.read_text().splitlines())
    return [
        misses / (TOP_K * row["n_kv_heads"])
        for row in rows
        if row["top_k"] == TOP_K and row["row_bits"] == 16
        for misses in row["misses_per_step"][1:]
    ]


def misses_of_steps(before: int = BEFORE[0]) -> list[int]:
    """Of a KV head with TOP_K selected rows, ascending."""
    return sorted(math.ceil(share * TOP_K / MISSES_STEP) * MISSES_STEP for share in missing_shares(before))


def mean(of_misses: Callable[[int], Seconds], before: int = BEFORE[0]) -> Seconds:
    """Over the recorded steps."""
    steps = misses_of_steps(before)
    times = {n: of_misses(n) for n in dict.fromkeys(steps)}
    return [math.fsum(times[n][end] for n in steps) / len(steps) for end in range(3)]


def step_row(
    n_heads: int, n_kv_heads: int, head_dim: int, seq_len: int, row_bits: int, before: int = BEFORE[0]
) -> Row:
    """What steps take with the recorded misses, the first with none hot, and dense attention."""
    shape: dict[str, Any] = dict(n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, seq_len=seq_len)
    settings = dict(SETTINGS, row_bits=row_bits, baseline=False)

    @functools.lru_cache(maxsize=None)
    def of_misses(n: int) -> Seconds:
        return seconds_of(plan(**shape, kernel=TIERED.name, misses=[n] * n_kv_heads, **settings))

    steps = misses_of_steps(before)
    return {
        "kind": "step",
        "before": before,
        **shape,
        "row_bits": row_bits,
        "mean": mean(of_misses, before),
        "p95": of_misses(steps[math.ceil(0.95 * len(steps)) - 1]),
        "first": of_misses(TOP_K),
        "best_dense": seconds_of(plan(**shape, kernel=DENSE_SRAM.name, baseline=False)),
        "dense": seconds_of(plan(**shape, kernel=BASELINE.name, baseline=False)),
    }


def model_row(model: str, seq_len: int, n_ipus: int) -> Row:
    """Attention of all layers for one token, layers split over IPUs, IPU after IPU."""
    shape: dict[str, Any] = dict(heads_of(MODELS[model]), seq_len=seq_len)
    per_ipu = math.ceil(LAYERS / n_ipus)

    def of_all(kernel: str, **others: Any) -> Seconds:
        layer = plan(**shape, kernel=kernel, n_layers=per_ipu, append=True, baseline=False, **others)
        return [LAYERS * seconds for seconds in seconds_of(layer)]

    best = plan_model(MODELS[model], seq_len=seq_len, n_ipus=n_ipus, weights=NO_WEIGHTS, attention="dense")
    ipu = placed_layers(model, n_ipus, seq_len=seq_len, **SETTINGS).ipus[0]
    n_tiered = ipu.n_on_chip
    streamed = seconds_of(ipu.others) if ipu.others else [0.0] * 3

    def of_misses(n: int) -> Seconds:
        return seconds_of(
            plan(
                **shape,
                kernel=TIERED.name,
                n_layers=n_tiered,
                misses=[n] * shape["n_kv_heads"],
                **SETTINGS,
                append=True,
                baseline=False,
            )
        )

    tiered = mean(of_misses) if n_tiered else streamed
    return {
        "kind": "model",
        "model": model,
        "seq_len": seq_len,
        "n_ipus": n_ipus,
        "n_tiered": n_tiered * n_ipus,
        "best_dense": [best.seconds_low, best.seconds_per_step, best.seconds_high],
        "dense": of_all(BASELINE.name),
        "published": of_all(DEFAULT.name, **{**SETTINGS, "index_bits": 16}),
        "tiers": [n_ipus * (n_tiered * t + (per_ipu - n_tiered) * s) for t, s in zip(tiered, streamed)],
    }


def planned() -> list[Row]:
    made = []
    steps = [(shape, BEFORE[0]) for shape in SHAPES] + [(shape, BEFORE[1]) for shape in LONGER]
    for shape, before in steps:
        made.append(step_row(*shape, before))
        print(f"{len(made)} planned", file=sys.stderr, flush=True)
    for model in MODELS:
        for seq_len in (16384, 65536):
            for n_ipus in (1, 4):
                made.append(model_row(model, seq_len, n_ipus))
                print(f"{len(made)} planned", file=sys.stderr, flush=True)
    return made


def spread(seconds: Seconds, scale: float, form: str) -> str:
    low, likely, high = (format(s * scale, form) for s in seconds)
    return f"{likely} ({low}-{high})" if low != high else likely


def speedup(dense: Seconds, seconds: Seconds) -> str:
    """The likely one, and where both are at their high and both at their low end."""
    return spread([dense[end] / seconds[end] for end in (2, 1, 0)], 1, ".3g") + "x"


def step_table(rows: list[Row]) -> str:
    heads = (
        "heads",
        "KV heads",
        "head_dim",
        "positions",
        "rows",
        "misses after",
        "mean us",
        "95 % of steps below",
        "first step",
        *OVER,
        *(f"first step {over}" for over in OVER),
    )
    return markdown_table(
        heads,
        (
            (
                *(str(row[name]) for name in ("n_heads", "n_kv_heads", "head_dim", "seq_len")),
                "fp16" if row["row_bits"] == 16 else f"int{row['row_bits']}",
                f"{row['before']:,}",
                *(spread(row[name], 1e6, ".1f") for name in ("mean", "p95", "first")),
                *(speedup(row[dense], row["mean"]) for dense in ("best_dense", "dense")),
                *(speedup(row[dense], row["first"]) for dense in ("best_dense", "dense")),
            )
            for row in rows
            if row["kind"] == "step"
        ),
    )


def model_table(rows: list[Row]) -> str:
    heads = (
        *("model", "positions", "IPUs", "best dense plan ms", f"{BASELINE.name} ms"),
        *("SparQ as published ms", "in three tiers, of 32 layers", "three tiers ms", *OVER),
    )
    return markdown_table(
        heads,
        (
            (
                row["model"],
                f"{row['seq_len']:,}",
                str(row["n_ipus"]),
                spread(row["best_dense"], 1e3, ".2f"),
                *(spread(row[name], 1e3, ".1f") for name in ("dense", "published")),
                str(row["n_tiered"]),
                spread(row["tiers"], 1e3, ".2f"),
                *(speedup(row[dense], row["tiers"]) for dense in ("best_dense", "dense")),
            )
            for row in rows
            if row["kind"] == "model"
        ),
    )


def main(arguments: list[str] | None = None) -> int:
    to_write, rows = kept_rows(__doc__, arguments, RESULTS, planned)
    print(f"{step_table(rows)}\n\n{model_table(rows)}")
    if to_write:
        write({(TABLES, "recorded"): step_table(rows), (PLANS, "models"): model_table(rows)})
    return 0
