# SPDX-License-Identifier: Apache-2.0
"""bench/shapes.py and bench/forms.py: their rows, and the figures of the pages."""

from __future__ import annotations

import copy
import json
import statistics
from pathlib import Path
from typing import Any

import forms
import pytest
import shapes

ROOT = Path(__file__).resolve().parents[2]


def rows_of(name: str) -> dict[str, Any]:
    lines = (ROOT / "bench/results" / f"{name}.jsonl").read_text().splitlines()
    return {row.get("case", "mix"): row for row in map(json.loads, lines)}


def rate(row: dict[str, Any], name: str = "tokens_per_second") -> float:
    return statistics.median(row[name])


def test_rows_of_shapes(monkeypatch: Any, capsys: Any) -> None:
    for name in ("torch", "transformers", "sparq_ipu._cpu"):
        pytest.importorskip(name)
    shape: dict[str, Any] = dict(hidden_size=128, intermediate_size=128, num_hidden_layers=2, head_dim=32)
    shape.update(num_attention_heads=4, num_key_value_heads=2, sliding_window=64)
    shape.update(layer_types=["sliding_attention", "full_attention"])
    cases = {f"tiny, {n}": ("Gemma3Text", shape, n) for n in (1024, 5120)}
    monkeypatch.setattr(shapes, "CASES", {"windows": cases})
    monkeypatch.setattr(shapes, "VOCABULARY", 128)
    monkeypatch.setattr(shapes, "STEPS", 2)
    assert shapes.main(["windows", "--rounds", "2", "--threads", "1"]) == 0
    said = capsys.readouterr()
    short, long = map(json.loads, said.out.splitlines())
    assert (short["case"], long["seq_len"], len(long["tokens_per_second"])) == ("tiny, 1024", 5120, 2)
    assert long["bytes_of_windows"] <= 2 * short["bytes_of_windows"]
    assert long["bytes_of_others"] >= 4 * short["bytes_of_others"] and "tiny, 5120" in said.err


def test_rows_of_forms(monkeypatch: Any, capsys: Any) -> None:
    for name in ("torch", "transformers", "llguidance", "fastapi", "sparq_ipu._cpu"):
        pytest.importorskip(name)
    from byte_tokenizer import byte_tokenizer
    from tiny_models import tiny_model

    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    tokenizer = byte_tokenizer(template, ["<s>", "</s>"], False)
    model = tiny_model(vocab_size=len(tokenizer), max_position_embeddings=1024)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    monkeypatch.setattr("sparq_ipu.models.smollm2_path", lambda: None)
    monkeypatch.setattr("sparq_ipu.models.load_model", lambda *_, **named: (copy.deepcopy(model), tokenizer))
    words = ["--requests", "4", "--new-tokens", "8", "--rounds", "1", "--threads", "1"]
    assert forms.main(words) == 0
    said = capsys.readouterr()
    row = json.loads(said.out)
    assert len(row["tokens_per_second"]) == len(row["tokens_per_second_without"]) == 1
    assert row["command"] == f"python bench/forms.py {' '.join(words)}" and "a third" in said.err


def test_the_pages_have_the_figures_of_the_rows() -> None:
    models = " ".join((ROOT / "docs/models.md").read_text().split())
    qwen, windows, mix = rows_of("shapes_qwen"), rows_of("shapes_windows"), rows_of("forms")["mix"]
    ratio = rate(qwen["Qwen 3"]) / rate(qwen["Qwen 2"])
    assert "Qwen 3 decodes about as fast as Qwen 2" in models and 0.9 <= ratio <= 1.1
    long, short = windows["its windows alone, 16384"], windows["its windows alone, 1024"]
    assert (
        "about as fast at 16,384 positions as at 1,024" in models and 0.9 <= rate(long) / rate(short) <= 1.1
    )
    assert f"{long['bytes_of_windows'] / 1e6:.0f} MB" in models
    serve = " ".join((ROOT / "docs/serve.md").read_text().split())
    share = rate(mix) / rate(mix, "tokens_per_second_without")
    assert f"{share:.2f} times the tokens/s" in serve and share >= 0.95
