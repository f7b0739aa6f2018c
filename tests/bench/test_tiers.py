# SPDX-License-Identifier: Apache-2.0
"""bench/tiers.py: which layers of a model fit in three tiers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

import tiers
from common import ROOT

import sparq_ipu
from sparq_reference import DoesNotFit

SMALL = "--head-dim 64 --r 8 --k 16 --model Llama-3-8B".split()


def block(name: str) -> str:
    """A generated block of the document."""
    text = (ROOT / "docs/device_model.md").read_text()
    return text.partition(f"<!-- begin {name}")[2].partition("-->\n")[2].partition("<!-- end")[0]


def rows_of(path: Path, *words: str) -> list[dict[str, Any]]:
    assert tiers.main([*words, "--json", str(path)]) == 0
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_as_many_layers_as_fit(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    one, many = rows_of(tmp_path / "rows.jsonl", *SMALL, "--S", "65536", "--ipus", "32", "1")
    assert (one["n_layers"], one["n_tiered"]) == (1, 1)
    assert 1 < many["n_tiered"] < many["n_layers"] == 32
    assert one["max_tile_bytes"] < many["max_tile_bytes"] <= 638976
    # one more does not fit
    shape = dict(n_heads=32, n_kv_heads=8, head_dim=64, seq_len=65536, rank=8, top_k=16, append=True)
    with pytest.raises(DoesNotFit):
        sparq_ipu.plan(
            **shape,  # type: ignore[arg-type]
            kernel="sparq-tiered",
            n_layers=many["n_tiered"] + 1,
            baseline=False,
        )
    assert one["seconds_per_token"] == pytest.approx(32 * one["seconds_tiered"])
    rest = 32 - many["n_tiered"]
    assert many["seconds_per_token"] == pytest.approx(
        many["n_tiered"] * many["seconds_tiered"] + rest * many["seconds_streamed"]
    )
    assert many["seconds_if_streamed"] == pytest.approx(32 * many["seconds_streamed"])
    assert f"{many['n_tiered']}" in capsys.readouterr().out


def test_refused_numbers(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stop:
        tiers.main([*SMALL, "--ipus", "0"])
    assert stop.value.code == 2
    assert "--ipus must be at least 1, got 0" in capsys.readouterr().err


def test_the_table_of_recorded_steps() -> None:
    published = block("steps")
    assert published == tiers.measured_steps() + "\n"
    rows = [json.loads(line) for line in tiers.STEPS.read_text().splitlines()]
    assert all(row["bit_exact"] is True and row["error"] is None for row in rows)


@pytest.mark.slow
def test_the_documents_tables(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "rows.jsonl")
    assert block("tiers") == tiers.markdown(rows) + "\n"
    assert block("rates") == tiers.rates() + "\n"
