# SPDX-License-Identifier: Apache-2.0
"""bench/prompt.py: its rows, and that it refuses other bits than the reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import prompt as program
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("faster", ["bfloat16", "float32"])
def test_rows(faster: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "PRODUCT", 64)
    monkeypatch.setattr(program, "faster_type", lambda: getattr(torch, faster))
    program.main(["--S", "64", "130", "--head-dim", "16", "--repeats", "2"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["method"], r["seq_len"]) for r in rows if r["method"].startswith("p")] == [
        ("prompt_attention", 64),
        ("prompt_attention float32", 64),
        (f"product {faster}", 64),
        ("prompt_attention", 130),
        ("prompt_attention float32", 130),
        (f"product {faster}", 130),
    ]
    assert all(0 < r["least"] <= r["gflop_per_s"] <= r["most"] for r in rows)


@pytest.mark.parametrize(("seconds", "faster"), [((2.0, 1.0), "float32"), ((1.0, 2.0), "bfloat16")])
def test_the_faster_type(seconds: tuple[float, float], faster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter(seconds)
    monkeypatch.setattr(program.timeit, "repeat", lambda *_, **__: [9.0, next(taken)])
    assert program.faster_type() == getattr(torch, faster)


def test_other_bits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    original = program.prompt_attention
    monkeypatch.setattr(program, "prompt_attention", lambda q, k, v: original(q, k, v) * 1.0001)
    with pytest.raises(AssertionError, match="other bits than the reference"):
        program.main(["--S", "64", "--head-dim", "16", "--repeats", "1"])


def test_the_document_has_the_committed_rows() -> None:
    rows = [json.loads(line) for line in (ROOT / "bench/results/prompt.jsonl").read_text().splitlines()]
    text = (ROOT / "docs/benchmarks.md").read_text().partition("## Prompts")[2].partition("\n## ")[0]
    for name in dict.fromkeys(row["method"] for row in rows):
        cells = " | ".join(
            "{gflop_per_s:.0f} ({least:.0f}-{most:.0f})".format(**row)
            for row in rows
            if row["method"] == name
        )
        assert f"| {cells} |" in text, name
