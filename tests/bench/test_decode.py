# SPDX-License-Identifier: Apache-2.0
"""bench/decode.py: every method decodes the same tokens from the same cache; the table says what it took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("sparq_ipu._cpu", reason="the CPU kernels are not built")

import decode

TINY = ["--model", "tiny-shape", "--steps", "2", "--rounds", "2", "--threads", "1", "--r", "4", "--k", "8"]


def rows_of(path: Path, *words: str) -> list[dict[str, Any]]:
    assert decode.main([*TINY, "--local", "2", *words, "--json", str(path)]) == 0
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    rows = rows_of(tmp_path / "rows.jsonl", "--S", "70", "130", "--batch", "2")
    assert [row["error"] for row in rows] == [None] * 24
    assert [(row["seq_len"], row["dtype"]) for row in rows[::6]] == [
        (n, dtype) for n in (70, 130) for dtype in ("float32", "bfloat16")
    ]
    by_method = {row["method"]: row for row in rows[:6]}
    assert list(by_method) == list(decode.METHODS)
    for name, row in by_method.items():
        # all of them attend to the same keys and values; SparQ to some of them
        assert (row["logits_differ"] > 0.01) == (name == "sparq"), name
        assert row["n_steps"] == 4 and row["tokens_per_second"] == 2 / row["seconds_per_step"]
        assert row["seconds_min"] <= row["seconds_per_step"] <= row["seconds_max"]
    # keys and values of 2 layers, 2 elements, 1 head of 16; room for 6 tokens more, or those that came
    rows_bytes = 2 * 2 * 2 * 16 * 76
    assert by_method["plain-sdpa"]["cache_bytes"] == 2 * 2 * 2 * 16 * 70 * 4
    assert by_method["plain-sdpa-static"]["cache_bytes"] == rows_bytes * 4
    assert by_method["dense"]["cache_bytes"] >= rows_bytes * 2
    assert "of best plain" in capsys.readouterr().err


def test_table() -> None:
    def row(method: str, speed: float | None, seq_len: int = 8) -> dict[str, Any]:
        names = ["batch", "dtype", "seconds_per_step", "seconds_mad", "cache_bytes", "error"]
        values: dict[str, Any] = dict.fromkeys(names)
        values.update(method=method, tokens_per_second=speed, seq_len=seq_len, batch=1, dtype="float32")
        return values

    rows = [row("plain-sdpa", 4.0), row("plain-eager", None), row("sparq", 10.0), row("sparq", 5.0, 16)]
    text = decode.table(rows, as_markdown=True).splitlines()
    assert [line.split("|")[8].strip() for line in text[2:]] == ["1.00x", "-", "2.50x", "-"]


def test_a_method_that_fails_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: decode.Method, *arguments: Any) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(decode.Method, "fill", fails)
    words = [*TINY, "--S", "9", "--methods", "dense", "--dtypes", "float32"]
    assert decode.main([*words, "--json", str(tmp_path / "rows")]) == 1
    assert json.loads((tmp_path / "rows").read_text())["error"] == "RuntimeError: no room"


@pytest.mark.parametrize(
    "words", [["--S", "0"], ["--rounds", "0"], ["--json", "/nowhere/x"], ["--batch", "x"]]
)
def test_bad_usage(words: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        decode.main([*TINY, *words])
    assert stop.value.code == 2
