# SPDX-License-Identifier: Apache-2.0
"""Attention of a stack of layers that share one program, and what grows with their number.

    python bench/plans.py layers --rank 32 --top-k 128 --index-bits 16 8 4 --write
    python bench/plans.py layers --layers 80 --heads 64    # another stack

The first command writes the table of docs/ipu_tables.md. A row counts the programs that append and attend:
their vertices, the code of all tiles, SRAM of the fullest tile, and the modelled time of all layers for one
token of every batch element. By default the stack has the shape of Llama-3-8B.
"""

from __future__ import annotations

import argparse
import itertools

from sparq_ipu.kernels import DEFAULT
from sparq_ipu.planning.record import NOT_IN_A_PLAN
from sparq_reference import checks

from ..common import NEWER_OPTIONS, ROOT, Column, CommandLine, Row, Workload, new_row, number, plan_into
from . import command_line as table_command
from . import markdown, parse, show, write
from . import planned as planned_rows

DOCUMENT = ROOT / "docs/ipu_tables.md"

COLUMNS = (
    Column("index", 5, lambda row: f"int{row['index_bits']}" if row["index_bits"] != 16 else "fp16"),
    Column("layers", 6, lambda row: str(row["n_layers"])),
    Column("vertices", 8, lambda row: number(row.get("vertices"), ",.0f")),
    Column("code, MB of all tiles", 21, lambda row: number(row.get("code_bytes"), ".2f", 1e-6)),
    Column("KiB/tile", 8, lambda row: number(row.get("max_tile_bytes"), ".0f", 1 / 1024)),
    Column("streaming GB", 12, lambda row: number(row.get("streaming_memory_bytes"), ".3f", 1e-9)),
    Column("us per layer", 12, lambda row: number(row.get("seconds_per_query"), ".1f", 1e6)),
    Column("low", 8, lambda row: number(row.get("seconds_low"), ".1f", 1e6)),
    Column("high", 8, lambda row: number(row.get("seconds_high"), ".1f", 1e6)),
    Column("us per token", 12, lambda row: number(row.get("seconds_per_token"), ".0f", 1e6)),
)


def command_line() -> CommandLine:
    """The flags; --help explains them."""
    cli = table_command(
        "layers",
        __doc__,
        DOCUMENT,
        without=("row_bits", *NEWER_OPTIONS),  # of a cache in streaming memory 16
        many=("index_bits",),
        defaults={"n_kv_heads": 8, "index_bits": list(checks.INDEX_BITS)},
    )
    add = cli.run.add_argument
    add("--layers", type=int, nargs="+", default=[1, 8, 32], metavar="N", help="layers of the stack [1 8 32]")
    return cli


def planned(workload: Workload, n_layers: int, a: argparse.Namespace) -> Row:
    """A row of results. One that does not fit says what there is too little of."""
    row = new_row(
        "layers", DEFAULT.name, "bow", workload, time_source="modelled", seed=a.seed, command=a.command
    )
    row["n_layers"] = n_layers
    result = plan_into(row, workload, n_layers=n_layers, append=True, baseline=False)
    if result is not None:
        row["vertices"] = result.memory["vertices"]
        row["code_bytes"] = sum(result.memory["code_per_tile"])
    return row


def main(argv: list[str] | None = None) -> int:
    cli = command_line()
    a = parse(cli, argv, DOCUMENT)
    cli.within(a, "layers", 1, checks.MAX_LAYERS)
    points = list(itertools.product(cli.workloads(a, takes_settings=True), a.layers))
    rows = planned_rows(points, lambda *point: planned(*point, a))
    notes = (
        "All times are modelled for a Bow IPU; us per token is attention of all layers.",
        f"{NOT_IN_A_PLAN}.",
    )
    show(a, rows, COLUMNS, notes)
    if a.write:
        write({(DOCUMENT, "layers"): markdown(rows, COLUMNS)})
    return 0
