#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of plans in the documents. Nothing is run; every time is modelled.

python bench/plans.py tiers --help
python bench/plans.py recorded --write      # the tables of docs/ipu_plans.md and ipu_tables.md
"""

from __future__ import annotations

import argparse
import importlib
import sys

from lib.common import Parser, guarded

#: tables by name: what each shows; the code is the module of that name in lib/plans/
TABLES = {
    "tiers": "which layers of a model fit an IPU in three tiers, and the time of a token",
    "recorded": "steps in three tiers with recorded misses, and whole models",
    "misses": "the time of a step in three tiers over the number of rows it misses",
    "crossover": "where SparQ pays on an IPU, and where dense attention is faster",
    "scaling": "attention of a whole model over Pods of several sizes",
    "layers": "what grows with the layers that share a program",
}


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    parser = Parser(
        prog="plans.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tables = parser.add_subparsers(dest="table", metavar="TABLE", required=True)
    for name, shows in TABLES.items():
        tables.add_parser(name, help=shows, add_help=False)
    # what follows the name of a table is for its own parser
    a, rest = parser.parse_known_args(words[:1])
    status: int = importlib.import_module(f"lib.plans.{a.table}").main([*rest, *words[1:]])
    return status


if __name__ == "__main__":
    sys.exit(guarded(main))
