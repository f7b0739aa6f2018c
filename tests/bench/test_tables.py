# SPDX-License-Identifier: Apache-2.0
"""bench/tables.py: the tables of docs/benchmarks.md are those of the committed rows."""

from __future__ import annotations

import itertools
import json

import pytest
import tables
from lib.decode_tables import read_rows


@pytest.mark.parametrize("name", tables.ROWS)
def test_the_document_is_what_the_rows_say(name: str) -> None:
    file, table = tables.ROWS[name]
    rows = read_rows(tables.RESULTS / file)
    text = tables.DOCUMENT.read_text().partition(f"<!-- begin {name}: ")[2]
    text = text.partition(f"<!-- end {name} -->")[0]
    shown, made = text.partition("\n")[2], table(rows) + "\n"
    assert shown == made and made.count("\n") > 4
    factor = itertools.count(2)  # negative control
    changed = json.loads(json.dumps(rows), parse_float=lambda text: next(factor) * float(text))
    assert table(changed) + "\n" != shown


def test_a_prompt_that_was_read_for_a_prediction_is_not_shown() -> None:
    rows = read_rows(tables.RESULTS / "long_prompt.jsonl")
    predicted = {**rows[-1], "first_token_seconds": 1.0, "predicted_first_token_seconds": 1.0}
    assert tables.of_the_peers([predicted, *rows]) == tables.of_the_peers(rows)
    del predicted["predicted_first_token_seconds"]
    assert tables.of_the_peers([predicted, *rows]) != tables.of_the_peers(rows)
