# SPDX-License-Identifier: Apache-2.0
"""Stacks of layers over several IPUs in bench/ipu_sparq.py, and bench/plans.py scaling with its document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")

import ipu_sparq
from lib import pod
from lib.common import ROOT
from lib.plans import markdown, scaling

from sparq_ipu.planning import plan_pod

SHAPE = ["--heads", "8", "--kv-heads", "4", "--head-dim", "16", "--r", "4", "--k", "16", "--tiles", "16"]
STACK = [*SHAPE, "--S", "256", "--layers", "4", "--ipus", "4", "--kernel", "sparq-streaming"]
ROWS = ROOT / "bench/results/scaling.jsonl.gz"


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("split", ["layers", "heads"])
def test_a_stack_is_planned_and_run(split: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "rows.jsonl"
    words = [*STACK, "--split", split, "--index-bits", "16", "8", "--json", str(path)]
    assert ipu_sparq.main(words) == 0
    rows = rows_of(path)
    assert [row["index_bits"] for row in rows] == [16, 8]
    for row in rows:
        assert row["bit_exact"] is True and row["checked_against"] in ("cpu", "reference")
        assert (row["n_layers"], row["n_ipus"], row["split"]) == (4, 4, split)
        assert row["emulated_seconds_per_token"] == pytest.approx(row["seconds_per_token"], rel=5e-3)
        assert row["time_source"] == "modelled"
        assert (row["seconds_if_gateway_shared"] > row["seconds_per_token"]) == (split == "heads")
    out = capsys.readouterr().out
    assert f"4 layers over 4 IPUs behind 1 gateways, split by {split}" in out
    assert "sparq-streaming int8: the emulated run counts" in out


@pytest.mark.parametrize("over", ["--ipus 1", "--ipus 4 --split heads"])
def test_dense_attention_in_sram_has_layers(over: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    words = f"--heads 8 --kv-heads 4 --head-dim 16 --tiles 16 --S 256 --layers 8 --kernel dense-sram {over}"
    assert ipu_sparq.main([*words.split(), "--json", str(path)]) == 0
    (row,) = rows_of(path)
    assert row["bit_exact"] is True and row["streamed_bytes"] == 0
    assert row["emulated_seconds_per_token"] == pytest.approx(row["seconds_per_token"], rel=1e-2)


def test_a_wrong_output_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = pod.attention
    monkeypatch.setattr(pod, "attention", lambda *a: right(*a) + np.float16(1))
    path = tmp_path / "rows.jsonl"
    assert ipu_sparq.main([*STACK, "--index-bits", "16", "--json", str(path)]) == 1
    (row,) = rows_of(path)
    assert row["bit_exact"] is False and "outputs differ" in row["error"]


def test_what_this_machine_has_no_room_for_is_planned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(pod, "host_memory", lambda: 1000)
    assert ipu_sparq.main([*STACK, "--index-bits", "16"]) == 0
    out = capsys.readouterr().out
    assert "not run: its caches take 0.0 GB, of this machine's 0.0 GB" in out and "not run" in out


def test_a_stack_that_does_not_fit_says_where(capsys: pytest.CaptureFixture) -> None:
    words = ["--S", "262144", "--kv-heads", "32", "--layers", "64", "--ipus", "2", "--plan-only"]
    assert ipu_sparq.main([*words, "--kernel", "sparq-streaming", "--index-bits", "16"]) == 1
    assert "streaming memory of IPU 0 must be at most 64000000000 bytes" in capsys.readouterr().out


def test_the_document_has_the_table_of_its_rows() -> None:
    rows = scaling.read_rows(ROWS)
    assert markdown(rows, scaling.COLUMNS) in (ROOT / "docs/ipu_tables.md").read_text()
    sizes = {(row["batch"], row["seq_len"], row["n_ipus"], row["split"]) for row in rows}
    assert len(sizes) == len(rows) == 2 * 4 * 3 * 2


def test_what_the_document_says_of_its_rows() -> None:
    """The sentences behind the table."""
    rows = [row for row in scaling.read_rows(ROWS) if not row["error"]]
    for row in rows:
        seconds = row["seconds_by_category"]
        assert 0.69 < seconds["streaming"] / seconds["total"] < 0.985
        few = row["n_ipus"] == 64 and row["seq_len"] == 2**14
        assert seconds["links"] / seconds["total"] < (0.02 if few else 0.01)
    found = {(r["batch"], r["seq_len"], r["n_ipus"], r["split"]): r for r in rows}
    one, many = found[1, 2**14, 4, "layers"], found[1, 2**14, 16, "layers"]
    assert many["seconds_per_token"] == pytest.approx(one["seconds_per_token"], rel=1e-2)
    for n_ipus, low, high in ((16, 45, 166), (64, 15, 45)):
        row = found[16, 2**14, n_ipus, "heads"]
        ends = row["seconds_per_token"], row["seconds_if_gateway_shared"]
        assert [round(1e3 * t) for t in ends] == [low, high]
    assert not any(row["seq_len"] == 2**20 for row in rows)
    seconds = many["seconds_by_category"]
    total = seconds["total"]
    on_chip = sum(seconds[name] for name in ("compute", "exchange", "sync"))
    text = " ".join((ROOT / "docs/ipu_plans.md").read_text().split())
    assert f"are bit-exact, and {1e3 * total:.2f} ms in plan and run. " in text
    shares = [
        f"{100 * part / total:.{digits}f} %"
        for part, digits in ((seconds["streaming"], 1), (on_chip, 1), (seconds["links"], 2))
    ]
    assert "{} of the time is streaming, {} work on chip and {} links.".format(*shares) in text


@pytest.mark.slow
def test_rows_of_the_document_are_plans_of_today() -> None:
    rows = [row for row in scaling.read_rows(ROWS) if not row["error"] and row["seq_len"] == 2**14]
    assert [(row["n_ipus"], row["split"]) for row in rows[:3]] == [
        (4, "layers"),
        (4, "heads"),
        (16, "layers"),
    ]
    for row in rows[:3]:
        shape = (row["batch"], row["n_heads"], row["n_kv_heads"], row["head_dim"], row["seq_len"])
        settings = {name: row[name] for name in ("rank", "top_k", "n_local", "index_bits")}
        planned = plan_pod(
            *shape, n_layers=row["n_layers"], n_ipus=row["n_ipus"], split=row["split"], **settings
        )
        assert planned.seconds_per_token == pytest.approx(row["seconds_per_token"], rel=1e-6)
        assert planned.row()["max_tile_bytes"] == row["max_tile_bytes"]


def test_scaling_makes_rows_and_refusals(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "rows.jsonl"
    words = [*SHAPE, "--S", "256", "--B", "1", "--layers", "4", "--ipus", "4", "8", "--json", str(path)]
    assert scaling.main(words) == 0
    rows = rows_of(path)
    assert [bool(row["error"]) for row in rows] == [False, False, True, True]
    assert [scaling.refusal(row) for row in rows[1:]] == [
        "yes",
        "no: be at most n_layers=4 where layers are split",
        "no: split n_kv_heads=4, then batch=1, evenly",
    ]
    assert scaling.main(["--read", str(path)]) == 0
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        scaling.main(["--read", str(tmp_path / "none.jsonl")])
    assert stop.value.code == 2
    assert "--read must be a file of rows" in capsys.readouterr().err
