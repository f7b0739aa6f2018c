# SPDX-License-Identifier: Apache-2.0
"""bench/reference.py at a size that takes no time: its rows, its check, its exit codes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "reference.py"
SMALL = "--heads 4 --kv-heads 2 --head-dim 16 --seq-len 100 --rank 4 --top-k 10 --local 2 --reps 3".split()


@pytest.fixture
def bench():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("bench_reference", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows(bench, capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    arguments = [*SMALL, "--json", str(file)]
    assert bench.main(arguments) == 0
    printed = capsys.readouterr().out
    assert file.read_text() == printed
    dense, sparq = (json.loads(line) for line in printed.splitlines())
    assert (dense["op"], sparq["op"]) == ("exact.dense_attention", "exact.sparq_attention")
    for row in (dense, sparq):
        assert row["error"] is None and row["checked"] == "float64" and row["time_source"] == "measured"
        assert len(row["seconds"]) == row["n_runs"] == 3 and min(row["seconds"]) > 0
        assert row["median_seconds"] == sorted(row["seconds"])[1]
        assert row["repro"].endswith(" ".join(SMALL) + f" --json {file}")
    assert (sparq["rank"], sparq["top_k"], sparq["n_local"]) == (4, 10, 2)
    with pytest.raises(SystemExit) as refused:  # it never overwrites
        bench.main(arguments)
    assert refused.value.code == 2 and file.read_text() == printed


def test_a_wrong_result_is_reported(
    bench, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.exact, "combine", lambda attended, alpha, mean: attended * np.float32(1.01))
    assert bench.main([*SMALL, "--kernel", "sparq"]) == 1
    assert "differs from float64" in json.loads(capsys.readouterr().out)["error"]


def test_refused_sizes(bench, capsys: pytest.CaptureFixture) -> None:
    for wrong, message in (
        (["--rank", "17"], "rank must be in [1, head_dim=16], got 17"),
        (["--top-k", "0"], "top_k must be in [1, 16777216], got 0"),
        (["--batch", "-1"], "batch must be in [1, 16777216], got -1"),
        (["--kv-heads", "0"], "n_kv_heads must be in [1, 16777216], got 0"),
        (["--kv-heads", "3"], "--heads must be a multiple of --kv-heads=3, got 4"),
        (["--heads", "0"], "--heads must be at least 1, got 0"),
        (["--seq-len", "-1"], "capacity must be in [1, 16777216], got -1"),
        (["--seed", "-1"], "--seed must be at least 0, got -1"),
        (["--reps", "0"], "--reps must be at least 1, got 0"),
    ):
        with pytest.raises(SystemExit) as stop:
            bench.main([*SMALL, *wrong])
        assert stop.value.code == 2 and message in capsys.readouterr().err


def test_dense_attention_has_no_rank(bench) -> None:
    assert bench.main([*SMALL, "--kernel", "dense", "--rank", "17", "--reps", "1"]) == 0


@pytest.mark.parametrize("option", ["--seq-len", "--rank", "--kernel", "--json", "--no-check"])
def test_help_names_the_options(bench, capsys: pytest.CaptureFixture, option: str) -> None:
    with pytest.raises(SystemExit) as stop:
        bench.main(["--help"])
    assert stop.value.code == 0 and option in capsys.readouterr().out
