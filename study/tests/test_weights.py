# SPDX-License-Identifier: Apache-2.0
"""study/weights.py: divergences from the model with weights of 16 bits, and the document's table of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

import weights as study  # noqa: E402
from tiny_models import save_checkpoint, tiny_model  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def test_divergences_of_a_small_model(tmp_path: Path, capsys: Any) -> None:
    save_checkpoint(tmp_path)
    words = ["--model", str(tmp_path), "--texts", "2", "--prompt-tokens", "40", "--tokens", "9"]
    assert study.main([*words, "--threads", "1", "--json", str(tmp_path / "lines")]) == 0
    lines = [json.loads(text) for text in (tmp_path / "lines").read_text().splitlines()]
    assert [json.loads(text) for text in capsys.readouterr().out.splitlines()] == lines
    found = {(line["weights"], line["attention"]): line for line in lines}
    assert list(found) == study.CASES
    dense = found["bfloat16", "dense"]
    assert (dense["kl"], dense["kl_standard_error"], dense["agreement"]) == (0, 0, 1)
    assert 0 < found["int8", "dense"]["kl"] < found["int4", "dense"]["kl"]


@pytest.mark.parametrize("attention, name", [("dense", "enable_dense"), ("sparq", "enable")])
def test_each_attention_is_enabled_by_its_own_call(
    attention: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Enabled(Exception):
        pass

    def enabled(*args: Any, **kwargs: Any) -> None:
        raise Enabled

    monkeypatch.setattr(f"sparq_ipu.transformers.{name}", enabled)
    tokens = torch.tensor([[1, 2]])
    with pytest.raises(Enabled):
        study.log_p(tiny_model().to(torch.bfloat16), attention, tokens, tokens)


def test_a_divergence_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    of_16_bits, of_few = (torch.tensor(p).log() for p in ([[0.5, 0.5]], [[0.25, 0.75]]))
    assert study.divergence(of_16_bits, of_few) == pytest.approx(0.14384, abs=1e-5)
    assert study.divergence(of_few, of_16_bits) == pytest.approx(0.13081, abs=1e-5)


def test_the_document_has_the_table_of_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ROOT / "study/results/weights.jsonl"
    document = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/settings.md").write_text(document, encoding="utf-8")
    monkeypatch.setattr(study, "ROOT", tmp_path)
    assert study.main(["--read", str(lines), "--write"]) == 0
    assert (tmp_path / "docs/settings.md").read_text(encoding="utf-8") == document
    (tmp_path / "one").write_text(lines.read_text().replace('"kl": 0.0', '"kl": 0.1'))
    assert study.main(["--read", str(tmp_path / "one"), "--write"]) == 0
    assert (tmp_path / "docs/settings.md").read_text(encoding="utf-8") != document
