# SPDX-License-Identifier: Apache-2.0
"""bench/plans.py layers: what a stack of layers takes that share one program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

from lib.common import ROOT
from lib.plans import layers, markdown

TINY = ["--S", "256", "--heads", "4", "--kv-heads", "2", "--head-dim", "16", "--r", "4", "--k", "16"]


def rows_of(capsys: pytest.CaptureFixture, path: Path, *words: str) -> list[dict[str, Any]]:
    assert layers.main([*words, "--json", str(path)]) == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(row["error"] is None for row in rows)
    return rows


def test_rows_and_table(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = [*TINY, "--layers", "1", "3", "--index-bits", "4"]
    one, three = rows_of(capsys, tmp_path / "rows.jsonl", *words)
    assert (one["n_layers"], three["n_layers"]) == (1, 3)
    assert three["seconds_per_token"] == pytest.approx(3 * three["seconds_per_query"])
    assert one["streaming_memory_bytes"] < three["streaming_memory_bytes"]
    assert f"{three['vertices']:,}" in capsys.readouterr().out


def test_what_does_not_fit_is_a_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    words = ["--S", "1048576", "--B", "16", "--layers", "64", "--index-bits", "4"]
    assert layers.main([*words, "--json", str(path)]) == 0
    (row,) = map(json.loads, path.read_text().splitlines())
    assert "streaming memory of an IPU must be at most" in row["error"]


@pytest.mark.slow
def test_the_documents_table_and_what_grows(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """The table of docs/ipu_tables.md; 32 layers have vertices and code of one, and under 7 % more."""
    words = "--rank 32 --top-k 128 --index-bits 16 8 4".split()
    rows = rows_of(capsys, tmp_path / "rows.jsonl", *words)
    text = (ROOT / "docs/ipu_tables.md").read_text()
    wanted = text.partition("<!-- begin layers")[2].partition("-->\n")[2].partition("<!-- end")[0]
    assert markdown(rows, layers.COLUMNS) + "\n" == wanted
    stacks = {(row["index_bits"], row["n_layers"]): row for row in rows}
    for (index_bits, n_layers), row in stacks.items():
        for what in ("vertices", "code_bytes"):
            assert row[what] < 1.07 * stacks[index_bits, 1][what]
        if n_layers > 1:  # control: one layer has no vertices that load and store
            assert row["vertices"] > stacks[index_bits, 1]["vertices"]
