# SPDX-License-Identifier: Apache-2.0
"""Tables of plans: what `bench/plans.py` shows, a module for each table."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Callable, Iterable, List, Mapping, Sequence, Tuple

from sparq_ipu.commands.tables import markdown_table, replace_block
from sparq_ipu.planning import Plan

from ..common import ROOT, Column, CommandLine, Parser, Row, check_output, text_table

#: modelled seconds with work on chip low, likely and high
Seconds = List[float]
#: (document, name of a block in it)
Block = Tuple[Path, str]


def command_line(
    table: str, description: str | None, document: Path, read: bool = False, **options: Any
) -> CommandLine:
    """The flags of a workload, --json and --write, for a table whose rows are planned when it is asked for;
    `options` as `CommandLine`. With `read`, also --read."""
    notes = "Exit status: 0, or 2 where the command line is wrong."
    cli = CommandLine(table, description, notes, program=f"plans.py {table}", **options)
    add = cli.run.add_argument
    add("--write", action="store_true", help=f"put the tables into {document.relative_to(ROOT)}")
    if read:
        add("--read", metavar="FILE", help="rows of an earlier run (.jsonl or .jsonl.gz) instead of planning")
    cli.add_run(None)
    return cli


def parse(cli: CommandLine, argv: Sequence[str] | None, document: Path) -> argparse.Namespace:
    """The arguments; a document that can not be written is refused before any work."""
    a = cli.parse(argv)
    check_output(cli.parser, "--write", document if a.write else None)
    return a


def planned(points: Sequence[Any], row: Callable[..., Row]) -> list[Row]:
    """A row for each point, with progress on stderr."""
    rows = []
    for point in points:
        rows.append(row(*point))
        print(f"\r{len(rows)}/{len(points)} planned", end="", file=sys.stderr, flush=True)
    print("", file=sys.stderr)
    return rows


def show(a: argparse.Namespace, rows: list[Row], columns: Sequence[Column], notes: Iterable[str]) -> None:
    """Print the rows, with what they mean below; append them to the file of --json."""
    if a.json is not None:
        a.json.append(rows)
    print(text_table(columns, rows))
    for note in notes:
        print(note)


def markdown(rows: Iterable[Row], columns: Sequence[Column]) -> str:
    """A table for a document."""
    return markdown_table([c.heading for c in columns], ([c.text(row) for c in columns] for row in rows))


def kept_rows(
    description: str | None,
    arguments: Sequence[str] | None,
    results: Path,
    plan: Callable[[], list[Row]],
    prepare: Callable[[], None] = lambda: None,
) -> tuple[bool, list[Row]]:
    """The command of a table whose rows are kept: whether to --write, and the rows of `results`, which
    --plan makes again. `prepare` is called before any planning if the table is written."""
    parser = Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.prog = f"plans.py {results.stem}"
    parser.add_argument("--plan", action="store_true", help=f"plan, and keep the rows in {results.name}")
    parser.add_argument("--write", action="store_true", help="put the tables into the documents")
    a = parser.parse_args(arguments)
    if a.write:
        prepare()
    if a.plan:
        results.write_text("[\n" + ",\n".join(map(json.dumps, plan())) + "\n]\n")
    return a.write, json.loads(results.read_text())


def write(blocks: Mapping[Block, str]) -> None:
    """Put tables into the generated blocks of documents."""
    for (document, name), text in blocks.items():
        replace_block(document, name, text)


def seconds_of(plan: Plan) -> Seconds:
    """The time of a plan with work on chip low, likely and high."""
    return [plan.seconds_low, plan.seconds_per_query, plan.seconds_high]
