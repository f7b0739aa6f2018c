# SPDX-License-Identifier: Apache-2.0
"""bench/cpu_sparq.py: what it prints, what it refuses, and that it notices a wrong result."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
SMALL = "--heads 4 --kv-heads 2 --head-dim 16 --r 4 --k 8 --local 2 --threads 2 --reps 2 --warmup 1 --seed 3"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(BENCH))
    try:
        spec = importlib.util.spec_from_file_location("cpu_sparq", BENCH / "cpu_sparq.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCH))
    module.STREAM_BYTES = 1 << 20
    return module


def test_rows(bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    lines = tmp_path / "rows.jsonl"
    command = [*SMALL.split(), "--kernels", "ours", "--S", "100", "7", "--json", str(lines)]
    assert bench.main(command) == 0
    printed = capsys.readouterr()
    rows = [json.loads(line) for line in printed.out.splitlines()]
    assert rows == [json.loads(line) for line in lines.read_text().splitlines()]
    kernels = ["dense", "sparq", "stream-dense", "stream-sparq"]
    assert [(row["seq_len"], row["kernel"]) for row in rows] == [(s, k) for s in (100, 7) for k in kernels]
    for row in rows:
        assert len(row["seconds"]) == row["n_runs"] == 2 and row["n_threads"] == 2
        assert row["time_source"] == "measured" and row["error"] is None
        assert (row["checked"] == "bitwise") == (row["kernel"] in ("dense", "sparq"))
        assert row["gb_per_s"] == pytest.approx(row["n_bytes"] / row["median_seconds"] / 1e9)
        assert row["repro"].startswith("python bench/cpu_sparq.py --heads 4")
    assert [row["n_bytes"] for row in rows[:2]] == [2 * 2 * 2 * 100 * 16, 2 * 2 * (100 * 4 + 2 * 8 * 16)]
    assert rows[4]["n_bytes"] == rows[5]["n_bytes"] == 2 * 2 * 2 * 7 * 16  # all positions selected: dense
    assert "x stream" in printed.err
    with pytest.raises(SystemExit):
        bench.main(command)  # the file exists


def test_pytorch_has_the_same_results(bench: ModuleType, capsys: pytest.CaptureFixture) -> None:
    """The formulas in PyTorch are SparQ: close to ours, which no test compares with them otherwise."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    assert bench.main([*SMALL.split(), "--S", "100"]) == 0
    rows = {row["kernel"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert len(rows) == 4 + 9
    for kernel in ("sdpa", "eager", "sparq"):  # fp16 results of numbers below 8: half an ulp is 2**-9
        assert rows[f"torch-{kernel}-float32"]["max_abs_difference"] < 2**-8
    assert rows["torch-sdpa-float32"]["n_bytes"] == 2 * rows["dense"]["n_bytes"]


def test_wrong_result_is_noticed(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a result that differs ends the run with status 1, before any time is printed."""
    monkeypatch.setattr(bench.sparq_ipu, "sparq_attention", lambda query, *rest, **settings: query)
    assert bench.main([*SMALL.split(), "--kernels", "ours", "--S", "50"]) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("--r 17", "rank must be in [1, head_dim=16], got 17"),
        ("--k 0", "top_k must be in [1, 16777216], got 0"),
        ("--local 9", "n_local must be in [0, top_k=8], got 9"),
        ("--kv-heads 3", "--heads must be a multiple of --kv-heads=3, got 4"),
        ("--kv-heads 0", "n_kv_heads must be in [1, 16777216], got 0"),
        ("--heads -4", "--heads must be at least 1, got -4"),
        ("--B -1", "batch must be in [1, 16777216], got -1"),
        ("--S 100 0", "capacity must be in [1, 16777216], got 0"),
        ("--threads 0", "--threads must be at least 1, got 0"),
        ("--seed -1", "--seed must be at least 0, got -1"),
        ("--warmup -1", "--warmup must be at least 0, got -1"),
    ],
)
def test_refused_sizes(bench: ModuleType, capsys: pytest.CaptureFixture, wrong: str, message: str) -> None:
    with pytest.raises(SystemExit) as stop:
        bench.main([*SMALL.split(), "--kernels", "ours", *wrong.split()])
    assert stop.value.code == 2 and message in capsys.readouterr().err
