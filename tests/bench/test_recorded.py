# SPDX-License-Identifier: Apache-2.0
"""bench/plans.py recorded: times with the misses that were recorded."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

from lib.common import ROOT
from lib.plans import recorded

from sparq_ipu.planning import plan

ROWS: list[dict[str, Any]] = json.loads(recorded.RESULTS.read_text())


def test_misses_are_those_of_the_recorded_steps() -> None:
    """Six traces of 255 steps; rounded up, and none is more than all."""
    shares = recorded.missing_shares()
    assert len(shares) == 6 * 255 and 0 <= min(shares) and max(shares) <= 1
    steps = recorded.misses_of_steps()
    assert steps == sorted(steps) and all(n % recorded.MISSES_STEP == 0 for n in steps)
    exact = sum(shares) * recorded.TOP_K
    assert exact <= sum(steps) < exact + len(steps) * recorded.MISSES_STEP


def test_misses_of_longer_texts() -> None:
    """Of 32 traces of 256 steps; they say what the hit rates of the study say."""
    shares = recorded.missing_shares(recorded.BEFORE[1])
    assert len(shares) == 32 * 256 and 0 <= min(shares) and max(shares) <= 0.75  # n_local rows never miss
    lines = map(json.loads, (ROOT / "study/results/reuse.jsonl").read_text().splitlines())
    wanted = dict(start=16384, top_k=128, policy="lru", n_hot=512)
    rates = [line for line in lines if all(line[name] == value for name, value in wanted.items())]
    mean = sum(line["misses_mean"] for line in rates) / len(rates)
    assert sum(shares) / len(shares) * 128 == pytest.approx(mean, abs=1e-3)
    assert sum(recorded.missing_shares()) / len(recorded.missing_shares()) != pytest.approx(
        mean / 128, rel=0.01
    )


def test_a_mean_is_over_steps() -> None:
    steps = recorded.misses_of_steps()
    found = recorded.mean(lambda n: [1.0, n + 0.5, 2.0 * n])
    expected = sum(steps) / len(steps)
    assert found == pytest.approx([1, expected + 0.5, 2 * expected])


def test_the_documents_have_the_tables_of_the_rows() -> None:
    for path, name, table in (
        (recorded.TABLES, "recorded", recorded.step_table(ROWS)),
        (recorded.PLANS, "models", recorded.model_table(ROWS)),
    ):
        text = path.read_text().partition(f"<!-- begin {name}")[2]
        assert text.partition("-->\n")[2].partition("<!-- end")[0] == table + "\n"
    for row in ROWS:
        for name, times in row.items():
            if isinstance(times, list):
                assert times == sorted(times) and len(times) == 3, name


def test_the_page_of_measurements_says_by_how_much() -> None:
    row = next(r for r in ROWS if r["kind"] == "step" and (r["n_kv_heads"], r["row_bits"]) == (32, 16))
    over_streaming = recorded.speedup(row["dense"], row["mean"])
    over_sram = f"{row['best_dense'][1] / row['mean'][1]:.1f} times as fast as dense attention in SRAM"
    text = " ".join((ROOT / "docs/benchmarks.md").read_text().split())
    assert f"modelled {over_streaming[:-1].replace('-', ' to ')} times as fast as dense attention" in text
    assert f"([tables](ipu_tables.md#three-tiers)), and {over_sram}" in text


@pytest.mark.slow
def test_rows_are_plans_of_today() -> None:
    """The first step, with nothing hot, and dense attention."""
    row = next(r for r in ROWS if r["kind"] == "step" and (r["n_kv_heads"], r["row_bits"]) == (8, 16))
    shape = dict(n_heads=32, n_kv_heads=8, seq_len=16384, baseline=False)
    first = plan(**shape, kernel="sparq-tiered", hit_rate=0.0, rank=32, top_k=128, index_bits=4)  # type: ignore[arg-type]
    assert recorded.seconds_of(first) == row["first"]
    dense = plan(**shape, kernel="dense-streaming")  # type: ignore[arg-type]
    assert recorded.seconds_of(dense) == row["dense"]


def test_layers_of_a_model_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"dense-streaming": [1.0, 2.0, 4.0], "sparq-streaming": [0.5, 1.0, 3.0], "others": [0.25] * 3}
    monkeypatch.setattr(recorded, "plan", lambda **how: how["kernel"])
    monkeypatch.setattr(recorded, "seconds_of", seconds.__getitem__)
    best = SimpleNamespace(seconds_low=1, seconds_per_step=2, seconds_high=3)
    monkeypatch.setattr(recorded, "plan_model", lambda *_, **__: best)
    placed = SimpleNamespace(ipus=[SimpleNamespace(n_on_chip=0, others="others")])
    monkeypatch.setattr(recorded, "placed_layers", lambda *_, **__: placed)
    row = recorded.model_row("Llama-3-8B", 16384, 4)
    assert row["dense"] == [32.0, 64.0, 128.0] and row["published"] == [16.0, 32.0, 96.0]
    assert row["best_dense"] == [1, 2, 3] and row["tiers"] == [8.0] * 3
