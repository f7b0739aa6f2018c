# SPDX-License-Identifier: Apache-2.0
"""bench/plans.py tiers: which layers of a model fit in three tiers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

from lib.common import ROOT
from lib.plans import markdown, tiers

from sparq_ipu.planning import plan, plan_model

SMALL = "--r 8 --k 16 --model Llama-3-8B".split()


def block(name: str) -> str:
    """A generated block of the document."""
    text = (ROOT / "docs/ipu_tables.md").read_text()
    return text.partition(f"<!-- begin {name}")[2].partition("-->\n")[2].partition("<!-- end")[0]


def rows_of(path: Path, *words: str) -> list[dict[str, Any]]:
    assert tiers.main([*words, "--json", str(path)]) == 0
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_rows_are_placements(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = dataclasses.replace(tiers.MODELS["Llama-3-8B"], head_dim=64)
    monkeypatch.setitem(tiers.MODELS, "Llama-3-8B", narrow)
    words = [*SMALL, "--S", "2048", "--ipus", "32", "16"]
    one, two = rows_of(tmp_path / "rows.jsonl", *words)
    assert (one["n_layers"], one["n_tiered"], two["n_layers"], two["n_tiered"]) == (1, 1, 2, 2)
    options: dict[str, Any] = dict(seq_len=2048, rank=8, top_k=16, index_bits=2)
    placed = plan_model(narrow, n_ipus=16, hit_rate=0.9, weights="none", split="layers", **options)
    links = placed.seconds_links
    assert two["seconds_per_token"] == placed.seconds_per_step - links
    assert two["seconds_low"] == placed.seconds_low - links < two["seconds_per_token"]
    assert two["seconds_high"] == placed.seconds_high - links > two["seconds_per_token"]
    heads = dict(n_heads=32, n_kv_heads=8, head_dim=64, append=True, baseline=False, n_layers=2)
    streamed = plan(**heads, kernel="sparq-streaming", **options)  # type: ignore[arg-type]
    assert two["seconds_if_streamed"] == 32 * streamed.seconds_per_query
    assert two["max_tile_bytes"] == placed.ipus[0].attention_tile
    assert one["max_tile_bytes"] < two["max_tile_bytes"]
    printed = capsys.readouterr().out
    assert f"{1e3 * two['seconds_per_token']:.2f}" in printed
    assert "90% of the selected rows assumed to be hot. Not in it: weights" in printed


def test_refused_numbers(capsys: pytest.CaptureFixture) -> None:
    for words, message in (
        (["--ipus", "0"], "--ipus must be in [1, 32], got 0"),
        (["--ipus", "1000"], "--ipus must be in [1, 32], got 1000"),
        (["--heads", "64"], "unrecognized arguments: --heads 64"),
        (["--head-dim", "64"], "unrecognized arguments: --head-dim 64"),
        (["--index-bits", "16"], "index_bits must be 8, 4 or 2 where memory is 'tiered', got 16"),
    ):
        with pytest.raises(SystemExit) as stop:
            tiers.main([*SMALL, "--S", "256", *words])
        assert stop.value.code == 2 and message in capsys.readouterr().err


def test_the_table_of_recorded_steps() -> None:
    published = block("steps")
    assert published == tiers.measured_steps() + "\n"
    rows = [json.loads(line) for line in tiers.STEPS.read_text().splitlines()]
    assert all(row["bit_exact"] is True and row["error"] is None for row in rows)


def published() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROOT / "bench/results/tiers.jsonl").read_text().splitlines()]


def test_the_documents_tables() -> None:
    of_long = [row for row in published() if "hot_rows" in row]
    wanted = markdown([row for row in published() if "hot_rows" not in row], tiers.COLUMNS) + "\n"
    assert block("tiers") == wanted
    assert block("long") == markdown(of_long, tiers.LONG_COLUMNS) + "\n"
    assert [(row["seq_len"], row["n_ipus"]) for row in of_long[::3]] == list(tiers.LONG_CONTEXTS)


def test_the_page_of_crossovers_says_by_how_much() -> None:
    cells = [line.split(" | ") for line in block("rates").splitlines()]
    most = max(float(row[-2].rstrip("x")) for row in cells if row[1:2] == ["128"])
    text = (ROOT / "docs/ipu_crossover.md").read_text()
    assert f"up to [{most:.1f} times as fast](ipu_tables.md#hit-rates) as dense attention in SRAM" in text


@pytest.mark.slow
def test_rows_of_the_document_are_plans_of_today(tmp_path: Path) -> None:
    words = "--S 16384 --ipus 4 --model Llama-2-7B --rank 32 --top-k 128 --index-bits 4".split()
    (today,) = rows_of(tmp_path / "rows.jsonl", *words)
    (then,) = (r for r in published() if (r["model"], r["seq_len"], r["n_ipus"]) == ("Llama-2-7B", 16384, 4))
    for of_run in ("git", "command"):
        del today[of_run], then[of_run]
    assert today == then
    assert block("rates") == tiers.rates() + "\n"
