# SPDX-License-Identifier: Apache-2.0
"""bench/reference.py at a size that takes no time: its rows, its check, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import reference

SHAPE = "--heads 4 --kv-heads 2 --head-dim 16 --S 100".split()
SMALL = [*SHAPE, *"--r 4 --k 10 --local 2 --reps 3".split()]


def test_rows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    arguments = [*SMALL, "--json", str(file)]
    assert reference.main(arguments) == 0
    printed = capsys.readouterr()
    assert file.read_text() == printed.out
    dense, sparq = (json.loads(line) for line in printed.out.splitlines())
    assert (dense["kernel"], sparq["kernel"]) == ("dense", "sparq")
    for row in (dense, sparq):
        assert row["error"] is None and row["checked_against"] == "float64"
        assert row["time_source"] == "measured" and row["device"] == "reference"
        assert 0 <= row["max_abs_error_vs_float64"] < 1e-2 and row["peak_extra_bytes"] > 0
        assert len(row["seconds"]) == row["n_runs"] == 3 and min(row["seconds"]) > 0
        assert row["seconds_per_query"] == sorted(row["seconds"])[1]
        assert row["command"].endswith(" ".join(SMALL) + f" --json {file}")
    assert (dense["rank"], sparq["rank"], sparq["top_k"], sparq["n_local"]) == (None, 4, 10, 2)
    assert "sparq: run 3 of 3" in printed.err and "|error|" in printed.err
    assert reference.main(arguments) == 0
    assert len(file.read_text().splitlines()) == 4  # appended


@pytest.mark.parametrize("more", [[], ["--no-mean-value"]])
def test_a_wrong_result_is_reported(
    more: list, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = reference.exact.attention
    assert reference.main([*SMALL, "--kernel", "sparq", *more]) == 0
    monkeypatch.setattr(reference.exact, "attention", lambda *a: right(*a) * np.float16(1.01))
    assert reference.main([*SMALL, "--kernel", "sparq", *more]) == 1
    good, bad = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert good["error"] is None and "differs from float64" in bad["error"]
    assert good["mean_value"] is not bool(more)


@pytest.mark.parametrize("index_bits", [8, 4, 2])
def test_index_bits(
    index_bits: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*SMALL, "--reps", "1", "--index-bits", str(index_bits)]
    assert reference.main(words) == 0
    dense, sparq = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (dense["index_bits"], sparq["index_bits"]) == (16, index_bits)
    assert f"--index-bits {index_bits}" in sparq["command"]
    # Negative control: with other positions than those of the twin, results differ.
    right = reference.exact.attention
    monkeypatch.setattr(reference.exact, "attention", lambda *a: right(*a[:4]))
    assert reference.main([*words, "--kernel", "sparq"]) == 1


def test_unchecked_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert reference.main([*SHAPE, "--kernel", "dense", "--no-check", "--reps", "3"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["checked_against"] is None and row["max_abs_error_vs_float64"] is None


def test_dense_attention_has_no_rank(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        reference.main([*SHAPE, "--kernel", "dense", "--r", "17", "--reps", "1"])
    assert stop.value.code == 2
    assert "--rank must be left out where only dense attention runs, got 17" in capsys.readouterr().err
