# SPDX-License-Identifier: Apache-2.0
"""Plan the attention of a stack of layers that share one program, and say what grows with them.

    python bench/layers.py                                  # Llama-3-8B's shape; 1, 8, 32 layers on 1, 4 IPUs
    python bench/layers.py --layers 80 --heads 64 --ipus 8  # another stack
    python bench/layers.py --write                          # the table of docs/device_model.md

Every IPU has its share of the KV heads of all layers. A row counts the program that appends and that of SparQ
attention: its vertices, the code of all tiles, SRAM of the fullest tile, and the modelled time of all layers
for one token of every batch element.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from typing import Iterable

from lib.common import (
    NEWER_OPTIONS,
    ROOT,
    Column,
    CommandLine,
    Row,
    Workload,
    check_output,
    guarded,
    in_flags,
    new_row,
    number,
    plan_into,
    text_table,
)

from sparq_ipu.commands.tables import markdown_table, replace_block
from sparq_ipu.kernels import DEFAULT
from sparq_ipu.planning import split
from sparq_ipu.planning.record import NOT_IN_A_PLAN
from sparq_reference import checks

DOCUMENT = ROOT / "docs/device_model.md"
BLOCK = "layers"
NOTES = "Exit status: 0, or 2 where the command line is wrong."

COLUMNS = (
    Column("index", 5, lambda row: f"int{row['index_bits']}" if row["index_bits"] != 16 else "fp16"),
    Column("IPUs", 4, lambda row: str(row["n_ipus"])),
    Column("layers", 6, lambda row: str(row["n_layers"])),
    Column("vertices", 8, lambda row: number(row.get("vertices"), ",.0f")),
    Column("code, MB of all tiles", 21, lambda row: number(row.get("code_bytes"), ".2f", 1e-6)),
    Column("KiB/tile", 8, lambda row: number(row.get("max_tile_bytes"), ".0f", 1 / 1024)),
    Column("streaming GB", 12, lambda row: number(row.get("streaming_memory_bytes"), ".3f", 1e-9)),
    Column("us a layer", 10, lambda row: number(row.get("seconds_per_query"), ".1f", 1e6)),
    Column("low", 8, lambda row: number(row.get("seconds_low"), ".1f", 1e6)),
    Column("high", 8, lambda row: number(row.get("seconds_high"), ".1f", 1e6)),
    Column("us a token", 10, lambda row: number(row.get("seconds_per_token"), ".0f", 1e6)),
)


def command_line() -> CommandLine:
    cli = CommandLine(
        __file__,
        __doc__,
        NOTES,
        without=("row_bits", *NEWER_OPTIONS),  # of a cache in streaming memory 16
        many=("index_bits",),
        defaults={"n_kv_heads": 8, "index_bits": [16, 8, 4]},
    )
    add = cli.run.add_argument
    add("--layers", type=int, nargs="+", default=[1, 8, 32], metavar="N", help="layers of the stack [1 8 32]")
    add("--ipus", type=int, nargs="+", default=[1, 4], metavar="N", help="IPUs that share the KV heads [1 4]")
    add("--write", action="store_true", help=f"put the table into {DOCUMENT.relative_to(ROOT)}")
    cli.add_run(None)
    return cli


def planned(workload: Workload, n_ipus: int, n_layers: int, a: argparse.Namespace) -> Row:
    """A row of results. One that does not fit says what there is too little of."""
    row = new_row(
        "layers", DEFAULT.name, "bow", workload, time_source="modelled", seed=a.seed, command=a.command
    )
    row.update(n_ipus=n_ipus, n_layers=n_layers)
    result = plan_into(row, workload, n_ipus=n_ipus, n_layers=n_layers, append=True, baseline=False)
    if result is not None:
        row["vertices"] = result.memory["vertices"]
        row["code_bytes"] = sum(result.memory["code_per_tile"])
    return row


def markdown(rows: Iterable[Row]) -> str:
    """The table for the document."""
    return markdown_table([c.heading for c in COLUMNS], ([c.text(row) for c in COLUMNS] for row in rows))


def main(argv: list[str] | None = None) -> int:
    cli = command_line()
    a = cli.parse(argv)
    for name, most in (("layers", checks.MAX_LAYERS), ("ipus", checks.MAX_CAPACITY)):
        cli.within(a, name, 1, most)
    check_output(cli.parser, "--write", DOCUMENT if a.write else None)
    rows = []
    points = list(itertools.product(cli.workloads(a, takes_settings=True), a.ipus, a.layers))
    try:
        for workload, n_ipus, _ in points:
            split(workload.spec.batch, workload.n_heads, workload.spec.n_kv_heads, n_ipus)
    except ValueError as error:
        cli.error(in_flags(error))
    for workload, n_ipus, n_layers in points:
        rows.append(planned(workload, n_ipus, n_layers, a))
        print(f"\r{len(rows)}/{len(points)} planned", end="", file=sys.stderr, flush=True)
    print("", file=sys.stderr)
    if a.json is not None:
        a.json.append(rows)
    print(text_table(COLUMNS, rows))
    print("All times are modelled for a Bow IPU; us a token is attention of all layers.")
    print(f"{NOT_IN_A_PLAN}.")
    if a.write:
        replace_block(DOCUMENT, BLOCK, markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
