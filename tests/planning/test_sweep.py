# SPDX-License-Identifier: Apache-2.0
"""bench/sweep.py: the grid, resuming, refusals as rows, emulation that checks, tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

core = pytest.importorskip("sparq_ipu._core")
if not core.has_emulator:
    pytest.skip("built without the emulator", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import sweep  # noqa: E402
import sweep_tables  # noqa: E402

SMALL = ["--seq-len", "256", "--batch", "1", "--kv-heads", "8", "--rank", "16", "--top-k", "64"]


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_grid_is_the_published_one():
    points = sweep.grid(sweep.parse(["--out", "x"]))
    sparq = [p for p in points if p.kernel == "sparq-streaming"]
    for n_kv_heads in (32, 8):
        assert sum(p.n_kv_heads == n_kv_heads for p in sparq) == sweep_tables.PUBLISHED_POINTS
    assert len(set(points)) == len(points) == 2 * (336 + 2 * 28)


def test_a_sweep_resumes(tmp_path, capsys):
    out = tmp_path / "sweep.jsonl"
    assert sweep.main(["--out", str(out), *SMALL]) == 0
    first = rows(out)
    assert [r["kernel"] for r in first] == ["dense-streaming", "dense-sram", "sparq-streaming"]
    assert all(r["error"] is None and r["time_source"] == "modelled" for r in first)
    assert "3 to do, 0 done before" in capsys.readouterr().err
    assert sweep.main(["--out", str(out), *SMALL]) == 0
    assert rows(out) == first
    assert "0 to do, 3 done before" in capsys.readouterr().err
    # Interrupted in the middle of the last line: that one is made again.
    text = out.read_text()
    out.write_text(text[:-40])
    assert sweep.main(["--out", str(out), *SMALL]) == 0
    assert "1 to do, 2 done before" in capsys.readouterr().err
    assert list(sweep.read(out).values()) == first


def test_refusals_are_rows(tmp_path):
    out = tmp_path / "sweep.jsonl"
    arguments = ["--seq-len", "65536", "--batch", "64", "--kv-heads", "32", "--rank", "16", "--top-k", "64"]
    assert sweep.main(["--out", str(out), *arguments]) == 0
    errors = {r["kernel"]: r["error"] for r in rows(out)}
    assert "streaming memory of an IPU must be at most" in errors["dense-streaming"]
    assert "tile memory" in errors["dense-sram"]
    assert errors["sparq-streaming"] is not None
    table = sweep_tables.coverage_table(sweep.read(out).values())
    assert "| dense-streaming, 32 KV heads | 1 | 0 | 0 | 1 | 0 | - | 0 | 0 |" in table
    assert "| dense-sram, 32 KV heads | 1 | 0 | 1 | 0 | 0 | - | 0 | 0 |" in table


def emulated(kernel, monkeypatch=None):
    sparq = (16, 64) if kernel == "sparq-streaming" else (None, None)
    point = sweep.Point(kernel, 1, 8, 256, *sparq)
    row = sweep.planned_row(point, "bow")
    return point, row


@pytest.mark.parametrize("kernel", ["dense-sram", "dense-streaming", "sparq-streaming"])
def test_emulation_checks_bits_and_counts(kernel):
    pytest.importorskip("sparq_ipu._cpu")
    point, row = emulated(kernel)
    sweep.emulate([point], [row])
    assert row["emulated"] and row["bit_exact"] and row["plan_equals_run"] and row["error"] is None


def test_emulation_sees_a_wrong_plan_and_a_wrong_result(monkeypatch):
    # Negative controls.
    pytest.importorskip("sparq_ipu._cpu")
    point, row = emulated("dense-streaming")
    row["seconds_per_query"] *= 1.0001
    sweep.emulate([point], [row])
    assert row["error"] == "the emulated run differs from the plan" and not row["plan_equals_run"]
    import sparq_ipu

    right = sparq_ipu.dense_attention
    monkeypatch.setattr(sparq_ipu, "dense_attention", lambda *a: right(*a) + 1)
    sweep.emulate([point], [row])
    assert row["error"] == "the emulated result differs from that of the CPU kernels" and not row["bit_exact"]


@pytest.mark.parametrize("kernel", ["dense-sram", "dense-streaming", "sparq-streaming"])
def test_a_cache_is_written_in_blocks(kernel, monkeypatch):
    # 100 positions in blocks of 32, in both elements: every position in its place.
    sparq = (16, 64) if kernel == "sparq-streaming" else (None, None)
    point = sweep.Point(kernel, 2, 8, 100, *sparq)
    monkeypatch.setattr(sweep, "BLOCK", 32)
    written = [[], []]

    class Session:
        def write(self, key, value, counts):
            assert counts == [key.shape[2]] * 2
            written[0].append(key)
            written[1].append(value)

    sweep.filled(Session(), point)
    assert len(written[0]) == (1 if kernel == "dense-sram" else 4)
    for which in (0, 1):
        for b in range(2):
            blocks = [
                sweep.random_positions(b, i, 8, min(32, 100 - 32 * i), sweep.HEAD_DIM)[which]
                for i in range(4)
            ]
            whole = np.concatenate(blocks, axis=1)
            assert np.array_equal(np.concatenate(written[which], axis=2)[b], whole)
            assert len(np.unique(whole)) > 1000
    row = sweep.planned_row(point, "bow")
    sweep.emulate([point], [row])
    assert row["emulated"] and row["error"] is None


def test_parts_are_of_one_shape():
    points = sweep.grid(sweep.parse(["--out", "x"]))
    parts = list(sweep.parts(points, 4))
    assert [p for part in parts for p in part] == points and max(map(len, parts)) == 4
    assert all(len({(p.batch, p.n_kv_heads, p.seq_len) for p in part}) == 1 for part in parts)


def test_speedups_are_over_dense_streaming_of_the_same_shape():
    base = dict(device="bow", n_kv_heads=8, error=None, top_k=None, rank=None)
    made = [
        {**base, "kernel": "dense-streaming", "batch": 1, "seq_len": 1, "seconds_per_query": 6.0},
        {**base, "kernel": "dense-streaming", "batch": 2, "seq_len": 1, "seconds_per_query": 10.0},
        {**base, "kernel": "sparq-streaming", "batch": 1, "seq_len": 1, "seconds_per_query": 2.0},
        {**base, "kernel": "sparq-streaming", "batch": 2, "seq_len": 1, "seconds_per_query": 2.0},
        {**base, "kernel": "sparq-streaming", "batch": 4, "seq_len": 1, "seconds_per_query": 2.0},
    ]
    assert [r["speedup_vs_dense_streaming"] for r in sweep_tables.speedups(made)] == [3.0, 5.0, None]


def test_usage_errors(tmp_path, capsys):
    for arguments, message in (
        (["--out", str(tmp_path / "none"), "--summary"], "--out must name a file with results"),
        (["--out", str(tmp_path / "x"), "--jobs", "0"], "--jobs must be at least 1"),
        (["--out", str(tmp_path / "x"), "--rank", "16", "0"], "rank must be in [1, head_dim=128], got 0"),
        (["--out", str(tmp_path / "x"), "--top-k", "0"], "top_k must be in [1, 16777216], got 0"),
        (["--out", str(tmp_path / "x"), "--seq-len", "-1"], "capacity must be in [1, 16777216], got -1"),
        (["--out", str(tmp_path / "x"), "--batch", "0"], "batch must be in [1, 16777216], got 0"),
        (["--out", str(tmp_path / "x"), "--kv-heads", "5"], "--kv-heads must divide 32 query heads, got 5"),
    ):
        with pytest.raises(SystemExit) as stop:
            sweep.main(arguments)
        assert stop.value.code == 2
        assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
