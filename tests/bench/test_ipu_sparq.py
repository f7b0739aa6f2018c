# SPDX-License-Identifier: Apache-2.0
"""The main job: what it prints and writes, and that it tells a wrong result from a right one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import inputs  # noqa: E402
import ipu_sparq  # noqa: E402

SMALL = (
    "--device emulator --S 200 --heads 4 --kv-heads 2 --head-dim 64 --r 16 --k 32 --local 4 --tiles 32"
).split()
FIELDS = {
    "kernel", "device", "batch", "n_heads", "n_kv_heads", "head_dim", "seq_len", "rank", "top_k", "n_local",
    "seconds_per_query", "time_source", "streamed_bytes", "transfer_elements", "transfer_elements_dense",
    "theoretical_speedup", "speedup_vs_dense_streaming", "max_tile_bytes", "bit_exact",
    "max_abs_error_vs_float64", "seed", "git", "error",
}  # fmt: skip


def run(*arguments: str, tmp_path: Path) -> tuple[int, list[dict[str, Any]]]:
    file = tmp_path / "rows.jsonl"
    status = ipu_sparq.main([*arguments, "--json", str(file)])
    return status, [json.loads(line) for line in file.read_text().splitlines()]


def test_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, rows = run(*SMALL, tmp_path=tmp_path)
    assert status == 0
    assert [row["kernel"] for row in rows] == list(ipu_sparq.KERNELS)
    for row in rows:
        assert set(row) >= FIELDS
        assert row["bit_exact"] is True and row["error"] is None
        assert row["time_source"] == "modelled" and row["seconds_per_query"] > 0
        assert 0 < row["max_abs_error_vs_float64"] < 1e-2
    sram, dense, sparq = rows
    assert sram["streamed_bytes"] == 0
    assert dense["streamed_bytes"] >= 2 * 200 * 64 * 2 * 2  # whole blocks of the cache, K and V
    # K by chunks of 256 (and the tail in SRAM), then rows of K and V
    assert sparq["streamed_bytes"] == 2 * (256 * 16 + 2 * 32 * 64) * 2
    assert sparq["speedup_vs_dense_streaming"] == dense["seconds_per_query"] / sparq["seconds_per_query"]
    out = capsys.readouterr()
    assert "modelled" in out.out and "nothing was measured on an IPU" in out.out
    assert "[3/3] sparq-streaming: check against the reference" in out.err


def test_wrong_results_get_no_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reference that differs in one bit of one output."""
    right = ipu_sparq.exact.dense_attention

    def wrong(*arguments: Any) -> np.ndarray:
        output = right(*arguments)
        output.view(np.uint16)[0, 1, 2] ^= 1
        return output

    monkeypatch.setattr(ipu_sparq.exact, "dense_attention", wrong)
    status, rows = run(*SMALL, tmp_path=tmp_path)
    assert status == 1
    for row in rows[:2]:
        assert row["bit_exact"] is False and row["seconds_per_query"] is None
        assert row["error"] == "1 of 256 outputs differ from the reference"
    assert rows[2]["bit_exact"] is True
    assert rows[2]["speedup_vs_dense_streaming"] is None
    assert "NO" in capsys.readouterr().out


def test_unchecked_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, rows = run(*SMALL, "--no-check", "--kernel", "sparq-streaming", tmp_path=tmp_path)
    assert status == 0 and len(rows) == 1
    assert rows[0]["bit_exact"] is None and rows[0]["max_abs_error_vs_float64"] is None
    assert "unchecked" in capsys.readouterr().out


def test_a_kernel_that_does_not_fit_is_a_row(tmp_path: Path) -> None:
    shape = "--S 40000 --heads 2 --head-dim 128 --device emulator --tiles 8 --no-check --kernel dense-sram"
    status, rows = run(*shape.split(), tmp_path=tmp_path)
    assert status == 1
    assert "638976" in rows[0]["error"] and rows[0]["seconds_per_query"] is None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--r 0", "rank must be in [1, head_dim=128], got 0"),
        ("--k 4 --local 5", "n_local must be in [0, top_k=4], got 5"),
        ("--heads 3 --kv-heads 2", "n_heads must be a multiple of n_kv_heads=2, got 3"),
        ("--head-dim 12", "head_dim must be a multiple of 8, got 12"),
        ("--S 0", "capacity must be in [1, 16777216], got 0"),
        ("--input missing.npz", "missing.npz"),
    ],
)
def test_bad_usage(arguments: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    shape = [] if "--S" in arguments else ["--S", "64"]
    assert ipu_sparq.main([*shape, *arguments.split(), "--device", "emulator"]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--tiles -1", "--tiles must be at least 0, got -1"),
        ("--tiles 1.5", "--tiles: invalid int value: '1.5'"),
        ("--seed -1", "--seed must be at least 0, got -1"),
        ("--reps 0", "--reps must be at least 1, got 0"),
        ("--inner-reps 0", "--inner-reps must be at least 1, got 0"),
        ("--plan-only --ipus 0", "--ipus must be at least 1, got 0"),
        ("--input x.npz --B 2", "--B must be left to the file of --input, got 2"),
        ("--input x.npz --head-dim=64", "--head-dim must be left to the file of --input, got 64"),
        ("--input x.npz --kv-heads 8", "--kv-heads must be left to the file of --input, got 8"),
        ("--input x.npz --plan-only", "--input must not be given with --plan-only, got x.npz"),
    ],
)
def test_usage_errors(arguments: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        ipu_sparq.main(arguments.split())
    assert stop.value.code == 2 and text in capsys.readouterr().err


def test_no_more_than_all_positions_are_read() -> None:
    a = ipu_sparq.parse_arguments("--S 64 --r 32 --k 128".split())
    row = ipu_sparq.new_row("sparq-streaming", "emulator", inputs.random_inputs(1, 2, 2, 64, 128, 0), a)
    assert row["theoretical_speedup"] == 2 * 64 * 128 / (64 * 32 + 2 * 64 * 128)
    assert row["transfer_elements"] == 64 * 32 + 2 * 64 * 128 + 4 * 128
    assert row["top_k"] == 128  # as asked for


def test_examples_of_plans_work(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ipu_sparq.main(["--help"])
    examples = [line.split()[2:] for line in capsys.readouterr().out.splitlines() if "--plan-only --" in line]
    assert [ipu_sparq.main(example) for example in examples] == [0]


def test_real_inputs(tmp_path: Path) -> None:
    file = str(ROOT / "tests" / "data" / "smollm2_hamlet.npz")
    status, rows = run(
        "--input", file, "--layer", "23", "--r", "16", "--k", "64", "--device", "emulator", tmp_path=tmp_path
    )
    assert status == 0
    assert [row["bit_exact"] for row in rows] == [True] * 3
    assert (rows[0]["n_heads"], rows[0]["n_kv_heads"], rows[0]["seq_len"]) == (9, 3, 768)


def test_plan_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, planned = run(*SMALL, "--plan-only", tmp_path=tmp_path)
    assert status == 0 and [row["kernel"] for row in planned] == list(ipu_sparq.KERNELS)
    assert "SRAM" in capsys.readouterr().out
    (tmp_path / "rows.jsonl").unlink()
    _, rows = run(*SMALL, "--no-check", tmp_path=tmp_path)
    for plan, row in zip(planned, rows):
        for field in ("seconds_per_query", "streamed_bytes", "max_tile_bytes"):
            assert plan[field] == row[field], (row["kernel"], field)


def test_plan_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--S 65536 --B 4 --kernel dense-sram --plan-only"
    assert ipu_sparq.main(arguments.split()) == 1
    assert "638976" in capsys.readouterr().out


def test_several_ipus_are_planned_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert ipu_sparq.main(["--ipus", "2"]) == 2
    assert "--ipus must be 1 without --plan-only, got 2" in capsys.readouterr().err


def test_input_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "query_3": rng.standard_normal((1, 4, 5, 16)).astype(np.float16),
        "key_3": rng.standard_normal((1, 2, 50, 16)).astype(np.float16),
        "value_3": rng.standard_normal((1, 2, 50, 16)).astype(np.float16),
    }
    file = tmp_path / "inputs.npz"
    np.savez(file, **arrays)
    loaded = inputs.load_inputs(file, seq_len=20)
    np.testing.assert_array_equal(loaded.query, arrays["query_3"][:, :, -1])
    np.testing.assert_array_equal(loaded.key, arrays["key_3"][:, :, 30:])
    for options, text in (
        (dict(layer=4), "layer must be one of [3], got 4"),
        (dict(seq_len=51), "S must be in [1, 50]"),
    ):
        with pytest.raises(ValueError) as caught:
            inputs.load_inputs(file, **options)
        assert text in str(caught.value)


def test_random_inputs_repeat() -> None:
    a, b = (inputs.random_inputs(2, 4, 2, 10, 8, seed=5) for _ in range(2))
    for x, y in zip(a, b):
        np.testing.assert_array_equal(x, y)
    assert (a.key != inputs.random_inputs(2, 4, 2, 10, 8, seed=6).key).any()
