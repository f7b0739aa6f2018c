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


def test_the_long_prompt_has_the_figures_of_its_rows() -> None:
    rows = {row["method"]: row for row in read_rows(tables.RESULTS / "long_prompt.jsonl")}
    assert {row["seq_len"] for row in rows.values()} == {32768}
    (text,) = (
        x for x in tables.DOCUMENT.read_text().split("\n\n") if x.startswith("A prompt of 32,768 tokens")
    )
    names = ("dense", "recommended", "openvino", "openvino-xattention")
    dense, blocks, openvino, xattention = (f"{rows[name]['first_token_seconds']:.0f}" for name in names)
    words = " ".join(text.split())
    assert (
        f"dense, {dense}, with blocks {blocks}; OpenVINO {openvino}, with XAttention {xattention}." in words
    )
    dense, sparq, openvino, xattention = (f"{rows[name]['tokens_per_second']:.1f}" for name in names)
    assert f"SparQ decodes {sparq} tokens/s, dense attention {dense}, OpenVINO {openvino}, with" in words
    assert f"with XAttention {xattention}. Attention" in words
