# SPDX-License-Identifier: Apache-2.0
"""bench/decode.py: every method decodes the same tokens from the same cache; the table says what it took."""

from __future__ import annotations

import json
import re
import types
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("sparq_ipu._cpu", reason="the CPU kernels are not built")

import decode
from lib import decode_tables

PLAIN = ["--model", "tiny-shape", "--steps", "2", "--rounds", "2", "--threads", "1"]
TINY = [*PLAIN, "--r", "4", "--k", "8"]


def rows_of(path: Path, *words: str) -> list[dict[str, Any]]:
    assert decode.main([*TINY, "--local", "2", *words, "--json", str(path)]) == 0
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    rows = rows_of(tmp_path / "rows.jsonl", "--S", "70", "130", "--batch", "2")
    assert [row["error"] for row in rows] == [None] * 28
    assert [(row["seq_len"], row["dtype"]) for row in rows[::7]] == [
        (n, dtype) for n in (70, 130) for dtype in ("float32", "bfloat16")
    ]
    by_method = {row["method"]: row for row in rows[:7]}
    assert list(by_method) == list(decode.METHODS)
    for name, row in by_method.items():
        # all of them attend to the same keys and values; SparQ to some of them
        assert (row["logits_differ"] > 0.01) == (name == "sparq"), name
        assert row["n_steps"] == 4 and row["tokens_per_second"] == 2 / row["seconds_per_step"]
        assert row["seconds_min"] <= row["seconds_per_step"] <= row["seconds_max"]
        assert row["nice"] is not None and len(row["load_average"]) == 2
        assert 1e8 < row["memory_bytes_per_second"] < 1e13
    # keys and values of 2 layers, 2 elements, 1 head of 16; room for 6 tokens more, or those that came
    rows_bytes = 2 * 2 * 2 * 16 * 76
    assert by_method["plain-sdpa"]["cache_bytes"] == 2 * 2 * 2 * 16 * 70 * 4
    assert by_method["plain-sdpa-static"]["cache_bytes"] == rows_bytes * 4
    assert by_method["dense"]["cache_bytes"] >= rows_bytes * 2
    assert "x transformers" in capsys.readouterr().err
    names = ("rank", "top_k", "n_local", "index_bits")
    settings = {name: tuple(row[setting] for setting in names) for name, row in by_method.items()}
    assert settings["sparq"] == (4, 8, 2, 4) and settings["dense"] == settings["plain-sdpa"] == (None,) * 4
    assert settings["recommended"] == (8, 256, 64, 2)  # of so short a text `enable` reads all


def test_recommended_is_what_enable_does_at_that_length(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.setattr("sparq_ipu.transformers.enable", lambda model, **said: told.append(said))
    monkeypatch.setattr("sparq_ipu.transformers.is_enabled", lambda model: False)
    model = types.SimpleNamespace(config=types.SimpleNamespace(hidden_size=128, num_attention_heads=2))
    a = decode.parser().parse_args([])
    for seq_len, top_k in (512, 256), (8192, 256), (8193, 512), (32768, 1024):
        method = decode.Method("recommended", model, a, seq_len)
        method.turn_on()
        assert told.pop() == {"top_k": top_k}
        assert method.settings is not None
        assert (method.settings.rank, method.settings.top_k, method.settings.index_bits) == (32, top_k, 2)
        assert method.settings.n_local == top_k // 4
    method = decode.Method("sparq", model, a, 9000)
    method.turn_on()
    said = dict(published=True, rank=32, top_k=128, n_local=32, index_bits=4)
    assert told.pop() == said and method.settings is not None and method.settings.top_k == 128
    decode.Method("sparq", model, decode.parser().parse_args(["--predict"]), 9000).turn_on()
    assert told == [{**said, "prompt_blocks": 0.0}]  # as `plan` predicts it


def test_the_times_of_steps() -> None:
    times = decode._times([0.9, 0.1, 0.2, 0.3], batch=2)
    assert (times["seconds_per_step"], times["tokens_per_second"]) == (0.25, 8.0)
    assert (times["seconds_min"], times["seconds_max"], times["n_steps"]) == (0.1, 0.9, 4)
    assert times["seconds_mad"] == pytest.approx(0.1)


def row(method: str, speed: float | None, seq_len: int = 8, dtype: str = "float32", **more: Any) -> dict:
    names = ["seconds_per_step", "seconds_mad", "seconds_min", "seconds_max", "cache_bytes", "error"]
    values: dict[str, Any] = dict.fromkeys(names)
    values.update(method=method, tokens_per_second=speed, seq_len=seq_len, batch=1, dtype=dtype)
    values.update(cpu="a processor", n_threads=2, clock="wall", others=0.01, git="abcdef0123")
    values.update(date="2026-03-09", paused=None, n_steps=20)
    return {**values, "memory_bytes_per_second": 2e9, "command": "python bench/decode.py", **more}


def test_tables() -> None:
    rows = [row("plain-sdpa", 4.0), row("plain-eager", None), row("sparq", 10.0), row("sparq", 5.0, 16)]
    text = decode.table(rows).splitlines()
    assert [re.findall(r"([\d.]+)x", line) for line in text[2:]] == [["1.00"], [], ["2.50"], []]
    rows += [row("plain-eager", 5.0, dtype="bfloat16"), row("dense", 7.0, dtype="bfloat16")]
    rows += [row("recommended", 10.0), row("recommended", 5.0, 16)]
    lines = decode_tables.of_the_lengths(rows).splitlines()
    assert lines[2:4] == [
        "| 8 | 1 | 5.0 (eager bf16) | 7.0 | 10.0 | 1.4x | 2.0x |",
        "| 16 | 1 | - | - | 5.0 | - | - |",
    ]
    said = "a processor, 2 threads. Measured on 9 March 2026, commit abcdef01"
    load = "Other programs used at most 1.0% of the processors"
    rate = "Measured memory bandwidth: 2.0 to 2.0 GB/s"
    assert lines[5] == f"{said}. {load}. {rate}. Commands:"
    assert lines[-1] == "    OMP_NUM_THREADS=2 python bench/decode.py"


def test_a_busy_machine_is_not_published() -> None:
    quiet, by_cpu = row("sparq", 4.0), row("sparq", 3.0, clock="cpu", others=0.9)
    busy = row("sparq", 1.0, others=0.06)
    assert decode_tables.published([busy, by_cpu, quiet]) == [quiet]
    assert decode_tables.published([busy, by_cpu]) == [by_cpu]
    assert decode_tables.published([busy]) == []
    text = decode_tables.of_the_lengths([busy, by_cpu])
    assert "commit abcdef01. CPU time of one thread. " in text


def test_rows_can_be_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows").write_text(
        "\n".join(json.dumps(row(name, 4.0, n)) for name in ("plain-sdpa", "sparq") for n in (8, 16))
    )
    document = tmp_path / "README.md"
    document.write_text("<!-- begin decode: x -->\n<!-- end decode -->\n")
    monkeypatch.setattr(decode, "DOCUMENT", document)
    assert decode.main(["--read", str(tmp_path / "rows"), "--write"]) == 0
    assert "| 16 | 1 | 4.0 (sdpa fp32) |" in document.read_text()


def test_the_document_is_what_the_rows_say() -> None:
    rows = decode_tables.read_rows(decode.ROWS)
    assert rows and not any(row["error"] for row in rows)
    text = decode.DOCUMENT.read_text()
    block = text.partition("<!-- begin decode: ")[2].partition("<!-- end decode -->")[0]
    assert block.partition("\n")[2] == decode_tables.of_the_lengths(rows) + "\n"


def test_a_method_that_fails_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: decode.Method, *arguments: Any) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(decode.Method, "fill", fails)
    words = [*PLAIN, "--S", "9", "--methods", "dense", "--dtypes", "float32"]
    assert decode.main([*words, "--json", str(tmp_path / "rows")]) == 1
    assert json.loads((tmp_path / "rows").read_text())["error"] == "RuntimeError: no room"


@pytest.mark.parametrize(
    "words",
    [
        ["--S", "0"],
        ["--rounds", "0"],
        ["--rest", "-1"],
        ["--local", "200"],
        ["--index-bits", "3"],
        ["--json", "/nowhere/x"],
        ["--batch", "x"],
        ["--read", "/nowhere/x"],
        ["--cpu-time", "--threads", "2"],
    ],
)
def test_bad_usage(words: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        decode.main([*TINY, *words])
    assert stop.value.code == 2


@pytest.mark.parametrize("line", ["{", "[" * 100_000])
def test_a_line_that_is_not_json_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("{}\n" + line + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^line 2 is not JSON$"):
        decode_tables.read_rows(path)
