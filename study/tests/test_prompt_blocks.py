# SPDX-License-Identifier: Apache-2.0
"""study/prompt_blocks.py: a small model, and the document's table of the committed lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import prompt_blocks as study

ROOT = Path(__file__).resolve().parents[2]


def line(index: int, share: float, kl: float, length: int = 100) -> dict[str, Any]:
    sums = {"kl": kl, "n": 10, "bits": 20.0, "chars": 10}
    return dict(task="lm", index=index, length=length, share=share, sums=sums)


def test_a_table_by_hand() -> None:
    lines = [line(i, share, share * (9 + i)) for i in range(3) for share in (0.0, 0.25, 0.5)]
    kl, bits = study.table(lines).splitlines()[2:]
    # 0.5 * (9 + 10 + 11) / 30, and half of it
    assert "| 3 | 0.0000 | 0.2500 | 0.5000 (+0.2500 [+0.1" in kl
    assert "| 2.0000 | 2.0000 | 2.0000 (+0.0000 [-inf, +inf])" in bits


def test_the_document_has_the_table_of_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ROOT / "study/results/prompt_blocks.jsonl"
    document = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/settings.md").write_text(document, encoding="utf-8")
    monkeypatch.setattr(study, "ROOT", tmp_path)
    assert study.main(["--json", str(lines), "--read", "--write"]) == 0
    assert (tmp_path / "docs/settings.md").read_text(encoding="utf-8") == document
    changed = [json.loads(text) for text in lines.read_text().splitlines()]
    changed[-1]["sums"] = {name: 2 + value for name, value in changed[-1]["sums"].items()}
    (tmp_path / "lines").write_text("".join(json.dumps(x) + "\n" for x in changed))
    assert study.main(["--json", str(tmp_path / "lines"), "--read", "--write"]) == 0
    assert (tmp_path / "docs/settings.md").read_text(encoding="utf-8") != document
