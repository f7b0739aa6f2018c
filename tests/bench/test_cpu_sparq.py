# SPDX-License-Identifier: Apache-2.0
"""bench/cpu_sparq.py: what it prints, what it refuses, and that it notices a wrong result."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sparq_ipu._cpu", reason="the extension module sparq_ipu._cpu is not built")

import cpu_sparq

SMALL = "--heads 4 --kv-heads 2 --head-dim 16 --r 4 --k 8 --local 2 --threads 2 --reps 2 --warmup 1 --seed 3"


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_sparq, "STREAM_BYTES", 1 << 20)


def test_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "rows.jsonl"
    command = [*SMALL.split(), "--kernels", "ours", "--S", "100", "7", "--json", str(lines)]
    assert cpu_sparq.main(command) == 0
    printed = capsys.readouterr()
    rows = [json.loads(line) for line in printed.out.splitlines()]
    assert rows == [json.loads(line) for line in lines.read_text().splitlines()]
    ours_in_order = ["dense", "sparq", "sparq-int8", "sparq-int4", "sparq-int2"]
    kernels = [*ours_in_order, *(f"stream-{name}" for name in ours_in_order)]
    assert [(row["seq_len"], row["kernel"]) for row in rows] == [(s, k) for s in (100, 7) for k in kernels]
    for row in rows:
        assert len(row["seconds"]) == row["n_runs"] == 2 and row["n_threads"] == 2
        assert row["time_source"] == "measured" and row["error"] is None
        ours = row["kernel"] in ours_in_order
        assert row["bit_exact"] is (True if ours else None)
        assert row["checked_against"] == ("reference" if ours else None)
        assert row["gb_per_s"] == pytest.approx(row["n_bytes"] / row["seconds_per_query"] / 1e9)
        assert row["command"].startswith("python bench/cpu_sparq.py --heads 4")
        assert (row["rank"], row["n_local"]) == ((4, 2) if "sparq" in row["kernel"] else (None, None))
        bits = int(row["kernel"][-1]) if "int" in row["kernel"] else 16
        assert row["index_bits"] == bits
    # One block of 64 positions in the index, with step and lowest value; the other 36 positions in fp16.
    rows_bytes = 2 * 2 * 2 * 8 * 16
    assert [row["n_bytes"] for row in rows[:5]] == [
        2 * 2 * 2 * 100 * 16,
        2 * 2 * 100 * 4 + rows_bytes,
        2 * 4 * (64 + 4 + 36 * 2) + rows_bytes,
        2 * 4 * (32 + 4 + 36 * 2) + rows_bytes,
        2 * 4 * (16 + 4 + 36 * 2) + rows_bytes,
    ]
    assert {row["n_bytes"] for row in rows[10:15]} == {2 * 2 * 2 * 7 * 16}  # all positions selected: dense
    assert {row["ratio_to_stream"] for row in rows[5:10]} == {1}
    for row, floor in zip(rows[:5], rows[5:10]):
        expected = row["seconds_per_query"] / floor["seconds_per_query"] * floor["n_bytes"] / row["n_bytes"]
        assert row["ratio_to_stream"] == pytest.approx(expected)
    assert "x stream" in printed.err and "S=7: run 3 of 3" in printed.err


def test_pytorch_has_the_same_results(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    assert cpu_sparq.main([*SMALL.split(), "--S", "100"]) == 0
    rows = {row["kernel"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert len(rows) == 10 + 3
    # fp16 results of numbers below 8: half an ulp is 2**-9
    assert rows["torch-sdpa-float32"]["max_abs_difference"] < 2**-8
    assert rows["torch-sdpa-float32"]["n_bytes"] == 2 * rows["dense"]["n_bytes"]
    made = {name: cpu_sparq.timing([float(10 + i)]) for i, name in enumerate(rows)}
    monkeypatch.setattr(cpu_sparq, "measure", lambda *a: made)
    assert cpu_sparq.main([*SMALL.split(), "--S", "100"]) == 0
    rows = {row["kernel"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    fastest = min(row["seconds_per_query"] for name, row in rows.items() if name.startswith("torch"))
    assert rows["sparq"]["speedup_vs_fastest_torch_dense"] == fastest / rows["sparq"]["seconds_per_query"]
    assert rows["sparq"]["speedup_vs_dense"] == (
        rows["dense"]["seconds_per_query"] / rows["sparq"]["seconds_per_query"]
    )


def test_some_key_indices(capsys: pytest.CaptureFixture[str]) -> None:
    command = [*SMALL.split(), "--kernels", "ours", "--S", "100", "--index-bits", "4", "4", "8"]
    assert cpu_sparq.main(command) == 0
    names = [json.loads(line)["kernel"] for line in capsys.readouterr().out.splitlines()]
    assert names[:3] == ["dense", "sparq-int4", "sparq-int8"] and len(names) == 6
    with pytest.raises(SystemExit):
        cpu_sparq.main([*command, "5"])
    assert "--index-bits must be one of 16, 8, 4, 2, got 5" in capsys.readouterr().err


def test_rows_of_8_bits(capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        *SMALL.split(),
        "--kernels",
        "ours",
        "--S",
        "100",
        "--index-bits",
        "4",
        "--row-bits",
        "8",
        "16",
    ]
    assert cpu_sparq.main(command) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    names = ["dense", "dense-rows8", "sparq-int4", "sparq-int4-rows8"]
    assert [row["kernel"] for row in rows] == [*names, *(f"stream-{name}" for name in names)]
    assert [row["row_bits"] for row in rows] == [16, 8] * 4
    assert [row["n_bytes"] for row in rows[:2]] == [
        2 * 100 * 64,
        2 * 100 * 40,
    ]  # 2 scales for each 32 numbers
    assert rows[2]["n_bytes"] - rows[3]["n_bytes"] == 2 * 8 * 24


@pytest.mark.parametrize("dense", [True, False])
def test_wrong_result_is_noticed(dense: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a result that differs ends the run with status 1, before any time is printed."""
    right = cpu_sparq.attention

    def wrong(query: np.ndarray, cache: object, settings: object = None) -> np.ndarray:
        output = right(query, cache, settings)
        if (settings is None) is dense:
            output.view(np.uint16)[0, 0, 0] ^= 1
        return output

    command = [*SMALL.split(), "--kernels", "ours", "--S", "50"]
    assert cpu_sparq.main(command) == 0
    monkeypatch.setattr(cpu_sparq, "attention", wrong)
    assert cpu_sparq.main(command) == 1
