# SPDX-License-Identifier: Apache-2.0
"""What the paper states in numbers, from data/published.csv: each with where it is said.

The bars of its figures 9 and 12 are pictures without numbers, so what is compared are the ranges and trends
that the text reads off them.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

PUBLISHED = Path(__file__).with_name("data") / "published.csv"


class Statement(NamedTuple):
    """A number, or a range, of the paper."""

    name: str
    low: float
    high: float
    unit: str
    setting: str
    source: str


def read_published() -> dict[str, Statement]:
    """Every statement by name."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        row["name"]: Statement(
            row["name"], float(row["low"]), float(row["high"]), row["unit"], row["setting"], row["source"]
        )
        for row in rows
    }
