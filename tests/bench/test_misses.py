# SPDX-License-Identifier: Apache-2.0
"""bench/plans.py misses: a step's time over its misses."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

from lib.common import ROOT
from lib.plans import misses as misses_table
from pictures_shown import digest_in

from sparq_ipu.commands import pictures

ROWS: list[dict[str, Any]] = json.loads(misses_table.RESULTS.read_text())


@pytest.mark.parametrize("pattern", misses_table.PATTERNS)
def test_patterns_miss_as_many_as_they_are_told(pattern: str) -> None:
    for total in (0, 1, 130, 1000, 1024):
        misses = misses_table.PATTERNS[pattern](total, 8)
        assert sum(misses) == total and len(misses) == 8 and max(misses) <= misses_table.TOP_K
    if pattern != "every head as many":  # control
        assert max(misses_table.PATTERNS[pattern](512, 8)) > 64


def steep(row: dict[str, Any]) -> tuple[int, ...]:
    pairs = zip(row["points"], row["points"][1:])
    return tuple(two[0] for one, two in pairs if misses_table.ratio(one[1], two[1]) > misses_table.MOST)


def test_no_step_is_above_a_tenth() -> None:
    """From one number of missing rows to the next, up or down. With fewer numbers the test sees some."""
    for row in ROWS:
        totals = [total for total, _ in row["points"]]
        assert totals[:2] == [0, 1] and totals[-1] == row["n_kv_heads"] * misses_table.TOP_K
        assert max(np.diff(totals)) <= totals[-1] // misses_table.PARTS
        assert steep(row) == () and misses_table.steepest(row) <= misses_table.MOST
        assert steep({**row, "points": row["points"][::4]}) != ()
        times = [seconds[1] for _, seconds in row["points"]]
        assert max(times) == times[-1]  # none is longer than that in which all are missing


def test_a_curve_is_finer_where_it_is_steep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers ascend, and neighbours differ by no more than MOST, or by one."""
    monkeypatch.setattr(misses_table, "seconds_of", lambda misses: [0.0, 1.0 + (sum(misses) > 70), 0.0])
    row = misses_table.curve(1, "every head as many")
    totals = [total for total, _ in row["points"]]
    assert (
        totals == sorted(totals) and {70, 71} <= set(totals) and (row["n_kv_heads"], steep(row)) == (1, (71,))
    )


def test_the_document_has_the_table_of_the_rows() -> None:
    text = (ROOT / "docs/ipu_tables.md").read_text().partition("<!-- begin misses")[2]
    assert text.partition("-->\n")[2].partition("<!-- end")[0] == misses_table.table(ROWS) + "\n"


def test_the_picture_is_not_older_than_its_rows() -> None:
    """If this fails: python bench/plans.py misses --write."""
    shown = digest_in(misses_table.PLOT)
    assert shown == pictures.digest(ROWS) != pictures.digest(ROWS[1:])


@pytest.mark.slow
def test_rows_are_plans_of_today() -> None:
    row = ROWS[0]
    pattern = misses_table.PATTERNS[row["pattern"]]
    for total, seconds in (row["points"][0], row["points"][len(row["points"]) // 2]):
        assert misses_table.seconds_of(pattern(total, row["n_kv_heads"])) == seconds
