# SPDX-License-Identifier: Apache-2.0
"""Plan attention of a whole model over Pods of several sizes, for several lengths, and say where adding IPUs
stops paying.

    python bench/scaling.py --json scaling.jsonl --write                     # the table of docs/scaling.md
    python bench/scaling.py --read bench/results/scaling.jsonl.gz --write    # the same, from rows of before
    python bench/scaling.py --S 16384 --B 1 --ipus 4 --layers 80 --heads 64

Every row is a plan (`sparq_ipu.planning.plan_pod`): modelled, nothing is run.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import sys
from pathlib import Path
from typing import Any, Iterable

from lib.common import (
    FLAGS,
    NEWER_OPTIONS,
    ROOT,
    Column,
    CommandLine,
    Row,
    Workload,
    check_output,
    failure,
    guarded,
    in_flags,
    new_row,
    number,
    text_table,
)

from sparq_ipu.commands.tables import markdown_table, replace_block
from sparq_ipu.device_options import SPLITS, DeviceOptions
from sparq_ipu.kernels import DEFAULT
from sparq_ipu.planning import plan_pod
from sparq_ipu.planning.record import NOT_IN_A_PLAN
from sparq_reference import checks

DOCUMENT = ROOT / "docs/scaling.md"
BLOCK = "scaling"
NOTES = "Exit status: 0, or 2 where the command line is wrong."


def _share(row: Row, *names: str) -> str:
    seconds = row.get("seconds_by_category")
    return "-" if not seconds else f"{sum(seconds[n] for n in names) / seconds['total']:.1%}"


def _range(row: Row, first: str, second: str, scale: float = 1.0, form: str = ",.1f") -> str:
    if row.get(first) is None:
        return "-"
    ends = (format(row[first] * scale, form), format(row[second] * scale, form))
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _per_second(row: Row) -> str:
    """Tokens a second of a pipeline, from every IPU at its full streaming rate to a shared gateway."""
    if row.get("seconds_of_busiest_ipu") is None:
        return "-"
    ends = [
        format(row["batch"] / row[name], ",.1f")
        for name in ("seconds_of_busiest_ipu", "seconds_of_busiest_ipu_if_gateway_shared")
    ]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def refusal(row: Row) -> str:
    """What there is too little of, in a few words."""
    error = row["error"]
    if not error:
        return "yes"
    for words in ("tile memory", "streaming memory"):
        if words in error:
            return f"no: {words}"
    return "no: " + error.split("must ")[1].split(", got")[0]


COLUMNS = (
    Column("batch", 5, lambda row: str(row["batch"])),
    Column("positions", 9, lambda row: f"{row['seq_len'] // 1024}K"),
    Column("IPUs", 4, lambda row: str(row["n_ipus"])),
    Column("split", -6, lambda row: row["split"]),
    Column("fits", -30, refusal),
    Column("ms a token", 16, lambda row: _range(row, "seconds_per_token", "seconds_if_gateway_shared", 1e3)),
    Column("ms, one by one", 14, lambda row: number(row.get("seconds_if_in_turn"), ",.1f", 1e3)),
    Column("tokens/s in flight", 18, _per_second),
    Column("streaming", 9, lambda row: _share(row, "streaming")),
    Column("on chip", 8, lambda row: _share(row, "compute", "exchange", "sync")),
    Column("links", 6, lambda row: _share(row, "links")),
    Column("GB an IPU", 9, lambda row: number(row.get("streaming_memory_bytes"), ".1f", 1e-9)),
    Column("KiB/tile", 8, lambda row: number(row.get("max_tile_bytes"), ".0f", 1 / 1024)),
)


def command_line() -> CommandLine:
    cli = CommandLine(
        __file__,
        __doc__,
        NOTES,
        without=("row_bits", *NEWER_OPTIONS),  # of a cache in streaming memory 16
        many=("capacity", "batch"),
        defaults={"n_kv_heads": 8, "capacity": [2**14, 2**16, 2**18, 2**20], "batch": [1, 16]},
    )
    add = cli.run.add_argument
    add("--layers", type=int, default=32, metavar="N", help="layers of the model [32]")
    add("--ipus", type=int, nargs="+", default=[4, 16, 64], metavar="N", help="IPUs, powers of two [4 16 64]")
    add("--tiles", type=int, default=0, metavar="N", help="tiles of an IPU [all of them]")
    add("--write", action="store_true", help=f"put the table into {DOCUMENT.relative_to(ROOT)}")
    add("--read", metavar="FILE", help="rows of an earlier run (.jsonl or .jsonl.gz) instead of planning")
    cli.add_run(None)
    return cli


def planned(workload: Workload, n_ipus: int, split: str, a: argparse.Namespace) -> Row:
    """A row of results. One that does not fit says what there is too little of."""
    row = new_row(
        "scaling", DEFAULT.name, "bow", workload, time_source="modelled", seed=a.seed, command=a.command
    )
    row.update(n_ipus=n_ipus, n_layers=a.layers, split=split)
    arguments: dict[str, Any] = workload.plan_arguments()
    try:
        result = plan_pod(**arguments, n_layers=a.layers, n_ipus=n_ipus, split=split, n_tiles=a.tiles)
    except ValueError as error:
        row.update(failure(error))
        return row
    row.update(result.row())
    return row


def markdown(rows: Iterable[Row]) -> str:
    """The table for the document."""
    return markdown_table([c.heading for c in COLUMNS], ([c.text(row) for c in COLUMNS] for row in rows))


def read_rows(path: Path) -> list[Row]:
    """Those that --json wrote, compressed or not."""
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return [json.loads(line) for line in text.splitlines()]


def main(argv: list[str] | None = None) -> int:
    cli = command_line()
    a = cli.parse(argv)
    cli.within(a, "layers", 1, checks.MAX_LAYERS)
    try:
        for n_ipus in a.ipus:
            DeviceOptions(a.tiles, n_ipus=n_ipus)
    except ValueError as error:
        cli.error(in_flags(error))
    if a.read:
        cli.refuse(a, "with --read", *(f.argument for f in FLAGS), "layers", "ipus", "tiles", "json")
    check_output(cli.parser, "--write", DOCUMENT if a.write else None)
    rows = []
    if a.read:
        try:
            rows = read_rows(Path(a.read))
        except (OSError, ValueError) as error:
            cli.error(f"--read must be a file of rows, got {a.read} ({error})")
    workloads = [] if a.read else cli.workloads(a, takes_settings=True)
    workloads = sorted(workloads, key=lambda w: (w.spec.batch, w.seq_len))
    points = list(itertools.product(workloads, a.ipus, SPLITS))
    for workload, n_ipus, split in points:
        rows.append(planned(workload, n_ipus, split, a))
        print(f"\r{len(rows)}/{len(points)} planned", end="", file=sys.stderr, flush=True)
    print("", file=sys.stderr)
    if a.json is not None:
        a.json.append(rows)
    print(text_table(COLUMNS, rows))
    print(
        "All times are modelled for Bow IPUs. Ranges: every IPU at its full streaming rate, to those behind"
    )
    print("one gateway sharing the rate of one. one by one: where IPUs' programs do not run side by side.")
    print(f"fits, GB and KiB are of one batch. {NOT_IN_A_PLAN}.")
    if a.write:
        replace_block(DOCUMENT, BLOCK, markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
