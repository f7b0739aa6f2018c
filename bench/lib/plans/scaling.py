# SPDX-License-Identifier: Apache-2.0
"""Attention of a whole model over Pods of several sizes, and where more IPUs stop paying.

    python bench/plans.py scaling --rank 32 --top-k 128 --index-bits 16 --json scaling.jsonl --write
    python bench/plans.py scaling --read bench/results/scaling.jsonl.gz --write    # rows of an earlier run
    python bench/plans.py scaling --S 16384 --B 1 --ipus 4 --layers 80 --heads 64

The first two write the table of docs/ipu_tables.md. Every row is a plan (`sparq_ipu.planning.plan_pod`).
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
from pathlib import Path
from typing import Any

from sparq_ipu.device_options import SPLITS, DeviceOptions
from sparq_ipu.kernels import DEFAULT
from sparq_ipu.planning import plan_pod
from sparq_ipu.planning.record import NOT_IN_A_PLAN
from sparq_reference import checks

from ..common import (
    FLAGS,
    NEWER_OPTIONS,
    ROOT,
    Column,
    CommandLine,
    Row,
    Workload,
    failure,
    in_flags,
    new_row,
    number,
)
from . import command_line as table_command
from . import markdown, parse, show, write
from . import planned as planned_rows

DOCUMENT = ROOT / "docs/ipu_tables.md"


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
    Column(
        "ms per token", 16, lambda row: _range(row, "seconds_per_token", "seconds_if_gateway_shared", 1e3)
    ),
    Column(
        "ms per token, one batch at a time",
        33,
        lambda row: number(row.get("seconds_if_in_turn"), ",.1f", 1e3),
    ),
    Column("tokens/s in flight", 18, _per_second),
    Column("streaming", 9, lambda row: _share(row, "streaming")),
    Column("on chip", 8, lambda row: _share(row, "compute", "exchange", "sync")),
    Column("links", 6, lambda row: _share(row, "links")),
    Column("GB per IPU", 10, lambda row: number(row.get("streaming_memory_bytes"), ".1f", 1e-9)),
    Column("KiB/tile", 8, lambda row: number(row.get("max_tile_bytes"), ".0f", 1 / 1024)),
)


def command_line() -> CommandLine:
    """The flags; --help explains them."""
    cli = table_command(
        "scaling",
        __doc__,
        DOCUMENT,
        read=True,
        without=("row_bits", *NEWER_OPTIONS),  # of a cache in streaming memory 16
        many=("capacity", "batch"),
        defaults={"n_kv_heads": 8, "capacity": [2**14, 2**16, 2**18, 2**20], "batch": [1, 16]},
    )
    add = cli.run.add_argument
    add("--layers", type=int, default=32, metavar="N", help="layers of the model [32]")
    add("--ipus", type=int, nargs="+", default=[4, 16, 64], metavar="N", help="IPUs, powers of two [4 16 64]")
    add("--tiles", type=int, default=0, metavar="N", help="tiles of an IPU [all of them]")
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


def read_rows(path: Path) -> list[Row]:
    """Those that --json wrote, compressed or not."""
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return [json.loads(line) for line in text.splitlines()]


def main(argv: list[str] | None = None) -> int:
    cli = command_line()
    a = parse(cli, argv, DOCUMENT)
    cli.within(a, "layers", 1, checks.MAX_LAYERS)
    try:
        for n_ipus in a.ipus:
            DeviceOptions(a.tiles, n_ipus=n_ipus)
    except ValueError as error:
        cli.error(in_flags(error))
    if a.read:
        cli.refuse(a, "with --read", *(f.argument for f in FLAGS), "layers", "ipus", "tiles", "json")
        try:
            rows = read_rows(Path(a.read))
        except (OSError, ValueError) as error:
            cli.error(f"--read must be a file of rows, got {a.read} ({error})")
    else:
        workloads = sorted(cli.workloads(a, takes_settings=True), key=lambda w: (w.spec.batch, w.seq_len))
        points = list(itertools.product(workloads, a.ipus, SPLITS))
        rows = planned_rows(points, lambda *point: planned(*point, a))
    notes = (
        "All times are modelled for Bow IPUs. Ranges: every IPU at its full streaming rate, to those behind",
        "one gateway sharing the rate of one. one by one: where IPUs' programs do not run side by side.",
        f"fits, GB and KiB are of one batch. {NOT_IN_A_PLAN}.",
    )
    show(a, rows, COLUMNS, notes)
    if a.write:
        write({(DOCUMENT, "scaling"): markdown(rows, COLUMNS)})
    return 0
