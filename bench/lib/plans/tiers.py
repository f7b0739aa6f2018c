# SPDX-License-Identifier: Apache-2.0
"""Which layers of a model fit an IPU in three tiers, and what a token then costs.

    python bench/plans.py tiers                        # Llama-3-8B's and Llama-2-7B's shapes; 1, 4, 16 IPUs
    python bench/plans.py tiers --S 16384 --ipus 4     # one row for each model
    python bench/plans.py tiers --rank 32 --top-k 128 --n-local 0 --index-bits 4 --write

The last command writes the tables of docs/ipu_tables.md. As many layers as fit SRAM are in three tiers, the
others stream their key index (`sparq_ipu.planning.plan_model` without weights). Times are those of attention
in all layers for one token, with an assumed share of the selected rows that is hot.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from typing import Any, Iterator

from sparq_ipu.commands.tables import markdown_table
from sparq_ipu.kernels import BASELINE, DEFAULT, TIERED
from sparq_ipu.planning import ModelPlan, model_shape, plan, plan_model
from sparq_ipu.planning.model_shape import NO_WEIGHTS, ModelShape
from sparq_ipu.planning.record import NOT_IN_A_PLAN

from ..common import ROOT, Column, CommandLine, Row, Workload, failure, new_row, number
from . import command_line as table_command
from . import markdown, parse, planned, show, write

DOCUMENT = ROOT / "docs/ipu_tables.md"
STEPS = ROOT / "bench/results/tiered_steps.jsonl"

#: of both models, which have 32 layers
MODELS = {name: model_shape.MODELS[name] for name in ("Llama-3-8B", "Llama-2-7B")}
LAYERS = 32
HIT_RATE = 0.9
#: of long contexts: an index of 2 bits, of all components and of half of them, and a small buffer of hot rows
LONG = dict(n_kv_heads=8, n_heads=32, head_dim=128, rank=32, top_k=192, n_local=64, index_bits=2)
LONG_HOT_ROWS = 192
LONG_CONTEXTS = ((65536, 1), (262144, 4))  # positions, IPUs
LONG_INDICES = ((0, 0.5), (64, 0.5), (64, 0.0))  # components, hit rate

COLUMNS = (
    Column("model", 10, lambda row: row["model"]),
    Column("S", 7, lambda row: f"{row['seq_len']:,}"),
    Column("IPUs", 4, lambda row: str(row["n_ipus"])),
    Column("layers per IPU", 14, lambda row: str(row["n_layers"])),
    Column("in three tiers", 14, lambda row: number(row["n_tiered"], ".0f")),
    Column("KiB/tile", 8, lambda row: number(row["max_tile_bytes"], ".0f", 1 / 1024)),
    Column("us per tiered layer", 19, lambda row: number(row["seconds_tiered"], ".0f", 1e6)),
    Column("us per streamed layer", 21, lambda row: number(row["seconds_streamed"], ".0f", 1e6)),
    Column("ms per token", 12, lambda row: number(row["seconds_per_token"], ".2f", 1e3)),
    Column("low", 8, lambda row: number(row["seconds_low"], ".2f", 1e3)),
    Column("high", 8, lambda row: number(row["seconds_high"], ".2f", 1e3)),
    Column("ms, all streamed", 16, lambda row: number(row["seconds_if_streamed"], ".2f", 1e3)),
)
#: of the table of long contexts
LONG_COLUMNS = (
    *COLUMNS[1:4],
    Column("index components", 16, lambda row: str(row.get("index_components") or row["head_dim"])),
    Column("hot", 4, lambda row: f"{row['hit_rate']:.0%}"),
    *COLUMNS[4:],
)


def command_line() -> CommandLine:
    """The flags; --help explains them."""
    cli = table_command(
        "tiers",
        __doc__,
        DOCUMENT,
        without=("n_heads", "n_kv_heads", "head_dim"),  # those of --model
        many=("capacity",),
        defaults={"capacity": [16384, 65536, 262144, 1048576]},
    )
    add = cli.run.add_argument
    add("--ipus", type=int, nargs="+", default=[1, 4, 16], metavar="N", help="IPUs of the model [1 4 16]")
    add("--model", choices=tuple(MODELS), nargs="+", default=list(MODELS), help="shapes [both]")
    add("--hot-rows", type=int, default=0, metavar="N", help="of each KV head in three tiers [0: 4 k]")
    text = f"share of the selected rows taken to be hot [{HIT_RATE}]"
    add("--hit-rate", type=float, default=HIT_RATE, metavar="P", help=text)
    return cli


def heads_of(shape: ModelShape) -> dict[str, int]:
    """Arguments of a plan of one layer."""
    return dict(n_heads=shape.n_heads, n_kv_heads=shape.n_kv_heads, head_dim=shape.head_dim)


def placed_layers(model: str, n_ipus: int, **options: Any) -> ModelPlan:
    """Attention alone, layers over the IPUs, as many as fit in three tiers."""
    shape = MODELS[model]
    return plan_model(shape, n_ipus=n_ipus, split="layers", weights=NO_WEIGHTS, **options)


def row_of(
    workload: Workload, model: str, n_ipus: int, a: argparse.Namespace, hot_rows: int, hit_rate: float
) -> Row:
    row = new_row(
        "tiers", TIERED.name, "bow", workload, time_source="modelled", seed=a.seed, command=a.command
    )
    row.update(model=model, n_ipus=n_ipus, n_layers=-(-LAYERS // n_ipus), hit_rate=hit_rate)
    if hot_rows:  # rows are older than this
        row.update(hot_rows=hot_rows)
    names = ("n_tiered", "max_tile_bytes", "seconds_tiered", "seconds_streamed", "seconds_per_token")
    row.update(dict.fromkeys((*names, "seconds_low", "seconds_high", "seconds_if_streamed")))
    arguments = workload.plan_arguments()
    options = {name: value for name, value in arguments.items() if name not in heads_of(MODELS[model])}
    of_tiers = {name: options[name] for name in ("row_bits", "index_components") if name in options}
    plain = {name: value for name, value in arguments.items() if name not in of_tiers}
    try:
        placed = placed_layers(model, n_ipus, hit_rate=hit_rate, hot_rows=hot_rows, **options)
        streamed = plan(
            **plain, kernel=DEFAULT.name, n_layers=row["n_layers"], append=True, baseline=False
        ).seconds_per_query
    except ValueError as error:
        row.update(failure(error))
        return row
    ipu, links = placed.ipus[0], placed.seconds_links
    if ipu.on_chip:
        row["max_tile_bytes"] = ipu.attention_tile
        row["seconds_tiered"] = ipu.on_chip.seconds_per_query
    row.update(
        n_tiered=ipu.n_on_chip,
        seconds_streamed=ipu.others.seconds_per_query if ipu.others else streamed,
        seconds_per_token=placed.seconds_per_step - links,
        seconds_low=placed.seconds_low - links,
        seconds_high=placed.seconds_high - links,
        seconds_if_streamed=LAYERS * streamed,
    )
    return row


def long_rows(a: argparse.Namespace) -> list[Row]:
    """Llama-3-8B at long contexts, with an index of all components and of half of them."""
    made = []
    for seq_len, n_ipus in LONG_CONTEXTS:
        for components, hit_rate in LONG_INDICES:
            arguments = {**LONG, "batch": 1, "capacity": seq_len, "index_components": components}
            workload = Workload.of("tiers", arguments, True)
            made.append(row_of(workload, "Llama-3-8B", n_ipus, a, LONG_HOT_ROWS, hit_rate))
    return made


def measured_steps() -> str:
    """The table of recorded steps, from their published rows."""
    rows = [json.loads(line) for line in STEPS.read_text().splitlines()]
    heads = (*("kind", "layer", "k", "rows", "hit rate"), *("KB per step", "first step"))

    def cells(row: dict[str, Any]) -> list[str]:
        return [
            row["kind"],
            str(row["layer"]),
            str(row["top_k"]),
            "fp16" if row["row_bits"] == 16 else f"int{row['row_bits']}",
            f"{row['hit_rate']:.3f}",
            number(statistics.fmean(row["streamed_bytes_per_step"]), ".1f", 1e-3),
            number(row["streamed_bytes_per_step"][0], ".1f", 1e-3),
        ]

    return markdown_table(heads, map(cells, rows))


#: of tables of caches in three tiers, and what they are about: KV heads, top_k, bits of rows, share of the
#: selected rows that is hot
TIER_HEADER = (
    *("KV heads", "k", "rows", "hit rate"),
    *("us", "low", "high", "on chip us", "over the best dense plan", f"over {BASELINE.name}"),
)
#: the first step, then the least and the most of the texts in docs/reuse.md, with 4 * k hot rows
_HIT_RATES = {128: (0.0, 0.87, 0.93), 256: (0.0, 0.92, 0.96)}
TIER_POINTS = tuple(
    (n_kv_heads, top_k, row_bits, hit_rate)
    for n_kv_heads, top_k, row_bits in itertools.product((32, 8), (128, 256), (16, 8))
    for hit_rate in _HIT_RATES[top_k]
)


def tier_rows() -> Iterator[tuple[str, ...]]:
    """Plans of caches in three tiers at S=16384, 32 heads, rank 32, with a key index of 4 bits."""
    for n_kv_heads, top_k, row_bits, hit_rate in TIER_POINTS:
        p = plan(
            *(1, 32, n_kv_heads, 128, 16384),
            kernel=TIERED.name,
            rank=32,
            top_k=top_k,
            n_local=0,
            index_bits=4,
            row_bits=row_bits,
            hit_rate=hit_rate,
        )
        yield (
            str(n_kv_heads),
            str(top_k),
            "fp16" if row_bits == 16 else f"int{row_bits}",
            f"{hit_rate:.2f}",
            number(p.seconds_per_query, ".1f", 1e6),
            number(p.seconds_low, ".1f", 1e6),
            number(p.seconds_high, ".1f", 1e6),
            number(p.on_chip_seconds, ".1f", 1e6),
            number(p.speedup_vs_best_dense, ".3g", 1, "x"),
            number(p.speedup_vs_dense_streaming, ".0f", 1, "x"),
        )


def rates() -> str:
    """The table of hit rates at one shape."""
    return markdown_table(TIER_HEADER, tier_rows())


def main(argv: list[str] | None = None) -> int:
    cli = command_line()
    a = parse(cli, argv, DOCUMENT)
    cli.within(a, "ipus", 1, LAYERS)
    points = [
        (workload, model, n_ipus, a, a.hot_rows, a.hit_rate)
        for model in a.model
        for workload in cli.workloads(a, takes_settings=True, **heads_of(MODELS[model]))
        for n_ipus in a.ipus
    ]

    def row(*point: Any) -> Row:
        made = row_of(*point)
        if made["error"] and not made["does_not_fit"]:
            cli.error(made["error"].partition(": ")[2])
        return made

    rows = planned(points, row)
    notes = (
        "All times are modelled for Bow IPUs: attention of 32 layers for one token, "
        f"{a.hit_rate:.0%} of the selected rows assumed to be hot. {NOT_IN_A_PLAN}."
    )
    show(a, rows, COLUMNS, [notes])
    if a.write:
        of_long = long_rows(a)
        if a.json is not None:
            a.json.append(of_long)
        blocks = {"tiers": markdown(rows, COLUMNS), "long": markdown(of_long, LONG_COLUMNS)}
        blocks.update(steps=measured_steps(), rates=rates())
        write({(DOCUMENT, name): text for name, text in blocks.items()})
    return 0
