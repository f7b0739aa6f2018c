# SPDX-License-Identifier: Apache-2.0
"""Which layers of a model fit an IPU in three tiers, and what a token then costs.

    python bench/tiers.py                        # Llama-3-8B's and Llama-2-7B's shapes; 1, 4, 16 IPUs
    python bench/tiers.py --S 16384 --ipus 4     # one line of each
    python bench/tiers.py --write                # the tables of docs/device_model.md

Every IPU has its share of the layers. As many of these as fit SRAM are in three tiers: key index and hot rows
in SRAM, all rows in streaming memory. The others are SparQ layers whose key index, of as many bits, is
streamed. SRAM of the fullest tile grows by the same bytes with each layer, so it is planned for one layer and
for two; the number that fits is planned once more. Times are of attention of all layers for one token, with a
share of the selected rows that is taken to be hot.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any, Iterable

from common import (
    ROOT,
    Column,
    CommandLine,
    Row,
    Workload,
    check_output,
    failure,
    new_row,
    number,
    text_table,
)

from sparq_ipu.kernels import DEFAULT, TIERED
from sparq_ipu.planning.planner import Plan, plan
from sparq_ipu.tables import markdown_table, replace_block

DOCUMENT = ROOT / "docs/device_model.md"
STEPS = ROOT / "bench/results/tiered_steps.jsonl"
NOTES = "Exit status: 0, or 2 where the command line is wrong."

#: (n_heads, n_kv_heads) of both models, which have 32 layers and head_dim 128
MODELS = {"Llama-3-8B": (32, 8), "Llama-2-7B": (32, 32)}
LAYERS = 32
HIT_RATE = 0.9

COLUMNS = (
    Column("model", 10, lambda row: row["model"]),
    Column("S", 7, lambda row: f"{row['seq_len']:,}"),
    Column("IPUs", 4, lambda row: str(row["n_ipus"])),
    Column("layers an IPU", 13, lambda row: str(row["n_layers"])),
    Column("in three tiers", 14, lambda row: str(row["n_tiered"])),
    Column("KiB/tile", 8, lambda row: number(row["max_tile_bytes"], ".0f", 1 / 1024)),
    Column("us a tiered layer", 17, lambda row: number(row["seconds_tiered"], ".0f", 1e6)),
    Column("us a streamed layer", 19, lambda row: number(row["seconds_streamed"], ".0f", 1e6)),
    Column("ms a token", 10, lambda row: number(row["seconds_per_token"], ".2f", 1e3)),
    Column("all streamed", 12, lambda row: number(row["seconds_if_streamed"], ".2f", 1e3)),
)


def command_line() -> CommandLine:
    cli = CommandLine(
        __file__,
        __doc__,
        NOTES,
        many=("capacity",),
        defaults={"capacity": [16384, 65536, 262144, 1048576], "index_bits": 4},
    )
    add = cli.run.add_argument
    add("--ipus", type=int, nargs="+", default=[1, 4, 16], metavar="N", help="IPUs of the model [1 4 16]")
    add("--model", choices=tuple(MODELS), nargs="+", default=list(MODELS), help="shapes [both]")
    add("--write", action="store_true", help=f"put the tables into {DOCUMENT.relative_to(ROOT)}")
    cli.add_run("nothing: plans have no random numbers")
    return cli


class Shape:
    """The plans of one model and length, each made once."""

    def __init__(self, workload: Workload) -> None:
        self._arguments = dict(workload.plan_arguments(), append=True, baseline=False)
        self._made: dict[tuple[str, int], Plan | ValueError] = {}

    def plan(self, kernel: str, n_layers: int) -> Plan:
        """Raises: DoesNotFit."""
        key = kernel, n_layers
        if key not in self._made:
            tiers = dict(hit_rate=HIT_RATE) if kernel == TIERED.name else {}
            try:
                self._made[key] = plan(kernel=kernel, n_layers=n_layers, **self._arguments, **tiers)
            except ValueError as error:
                self._made[key] = error
        made = self._made[key]
        if isinstance(made, ValueError):
            raise made
        return made

    def most_tiered(self, n_layers: int) -> int:
        """How many of so many layers fit SRAM."""
        try:
            one, two = (self.plan(TIERED.name, n) for n in (1, 2))
        except ValueError:
            return self._fits(1)
        more = two.max_tile_bytes - one.max_tile_bytes
        most = min(n_layers, 2 + (one.memory["limit"] - two.max_tile_bytes) // more)
        while most and not self._fits(most):
            most -= 1
        while most < n_layers and self._fits(most + 1):
            most += 1
        return int(most)

    def _fits(self, n_layers: int) -> int:
        try:
            self.plan(TIERED.name, n_layers)
        except ValueError:
            return 0
        return n_layers


def row_of(shape: Shape, workload: Workload, model: str, n_ipus: int, a: argparse.Namespace) -> Row:
    row = new_row(
        "tiers", TIERED.name, "bow", workload, time_source="modelled", seed=a.seed, command=a.command
    )
    n_layers = -(-LAYERS // n_ipus)
    row.update(model=model, n_ipus=n_ipus, n_layers=n_layers, hit_rate=HIT_RATE)
    names = ("n_tiered", "max_tile_bytes", "seconds_tiered", "seconds_streamed", "seconds_per_token")
    row.update(dict.fromkeys((*names, "seconds_if_streamed")))
    row["n_tiered"] = shape.most_tiered(n_layers)
    try:
        if row["n_tiered"]:
            tiered = shape.plan(TIERED.name, row["n_tiered"])
            row.update(max_tile_bytes=tiered.max_tile_bytes, seconds_tiered=tiered.seconds_per_query)
        streamed = shape.plan(DEFAULT.name, 1).seconds_per_query
    except ValueError as error:
        row.update(failure(error))
        return row
    rest = n_layers - row["n_tiered"]
    row["seconds_streamed"] = streamed
    row["seconds_if_streamed"] = LAYERS * streamed
    of_ipu = row["n_tiered"] * (row["seconds_tiered"] or 0.0) + rest * streamed
    row["seconds_per_token"] = of_ipu * LAYERS / n_layers  # IPUs work one after the other
    return row


def markdown(rows: Iterable[Row]) -> str:
    """The table for the document."""
    return markdown_table([c.heading for c in COLUMNS], ([c.text(row) for c in COLUMNS] for row in rows))


def measured_steps() -> str:
    """The table of recorded steps, from their published rows."""
    rows = [json.loads(line) for line in STEPS.read_text().splitlines()]
    heads = ("kind", "layer", "k", "hit rate", "us a step", "95th percentile", "first step", "KB a step")

    def cells(row: dict[str, Any]) -> list[str]:
        return [
            row["kind"],
            str(row["layer"]),
            str(row["top_k"]),
            f"{row['hit_rate']:.3f}",
            number(row["seconds_per_query"], ".1f", 1e6),
            number(row["seconds_p95"], ".1f", 1e6),
            number(row["seconds_per_step"][0], ".1f", 1e6),
            number(statistics.fmean(row["streamed_bytes_per_step"]), ".1f", 1e-3),
        ]

    return markdown_table(heads, map(cells, rows))


def rates() -> str:
    """The table of hit rates at one shape."""
    heads = ("KV heads", "k", "hit rate", "us", "on chip us", "speed-up")
    rows = []
    for n_kv_heads in (32, 8):
        for top_k in (128, 256):
            for hit_rate in (0.0, 0.89, 0.95):
                planned = plan(1, 32, n_kv_heads, kernel=TIERED.name, top_k=top_k, hit_rate=hit_rate)
                times = (
                    number(planned.seconds_per_query, ".1f", 1e6),
                    number(planned.on_chip_seconds, ".1f", 1e6),
                )
                speedup = number(planned.speedup_vs_dense_streaming, ".0f", 1, "x")
                rows.append([str(n_kv_heads), str(top_k), f"{hit_rate:.2f}", *times, speedup])
    return markdown_table(heads, rows)


def main(argv: list[str] | None = None) -> int:
    cli = command_line()
    a = cli.parse(argv)
    if min(a.ipus) < 1:
        cli.error(f"--ipus must be at least 1, got {min(a.ipus)}")
    check_output(cli.parser, "--write", DOCUMENT if a.write else None)
    rows = []
    for model in a.model:
        n_heads, n_kv_heads = MODELS[model]
        for workload in cli.workloads(a, takes_settings=True, n_heads=n_heads, n_kv_heads=n_kv_heads):
            shape = Shape(workload)
            for n_ipus in a.ipus:
                rows.append(row_of(shape, workload, model, n_ipus, a))
                print(f"\r{len(rows)} planned", end="", file=sys.stderr, flush=True)
    print("", file=sys.stderr)
    if a.json is not None:
        a.json.append(rows)
    print(text_table(COLUMNS, rows))
    print("All times are modelled for Bow IPUs: attention of 32 layers for one token.")
    if a.write:
        replace_block(DOCUMENT, "tiers", markdown(rows))
        replace_block(DOCUMENT, "steps", measured_steps())
        replace_block(DOCUMENT, "rates", rates())
    return 0


if __name__ == "__main__":
    sys.exit(main())
