# SPDX-License-Identifier: Apache-2.0
"""study/prompt_blocks.py: its texts, sums and tables, XAttention beside loops, and the document's tables."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import prompt_blocks as study
import torch

from sparq_study import xattention
from sparq_study.accuracy.tasks import Words

ROOT = Path(__file__).resolve().parents[2]


class Bytes:
    """A tokenizer: a token is a byte."""

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace")


def test_questions_of_a_context_follow_it() -> None:
    context, questions = study.build(Bytes(), 3, 6000)
    tokens, places = study.laid_out(questions)
    counts = [name for name, _ in questions]
    assert (counts[0], counts.count("multikey"), counts.count("repetition")) == ("lm", 6, study.PASSAGES)
    assert [tokens[place + 1] for place in places] == [token for _, p in questions for token in p.target]
    text = bytes(context).decode(errors="replace")
    for name, probe in questions[1:]:
        asked = bytes(probe.prompt).decode(errors="replace").strip()
        # a number stands behind the question in the context too, and a passage behind its cue
        assert (asked if name == "multikey" else "") + bytes(
            probe.target[:20]
        ).decode() in text or name == "retrieval"
    assert len(context) + 1 == 6000


def test_sums_by_hand() -> None:
    _, questions = study.build(Bytes(), 0, 6000)
    multikey = [question for question in questions if question[0] == "multikey"][:1]
    target = torch.tensor(multikey[0][1].target)
    log_p = torch.full((len(target), 256), 0.25).log()
    log_p[torch.arange(len(target)), target] = torch.tensor(0.5).log()
    log_p[-1, 7] = 0.0  # the last digit is missed
    sums = study.scored(multikey, log_p.gather(1, target[:, None])[:, 0], Words(Bytes(), ""), log_p, log_p)
    assert sums["multikey"] == sums["retrieval"]
    assert (sums["multikey"]["hits"], sums["multikey"]["n"]) == (4, 5)
    assert sums["multikey"]["bits"] == pytest.approx(5)


@pytest.mark.parametrize("n", [64, 203, 512])
def test_xattention_is_that_of_loops(n: int) -> None:
    torch.manual_seed(n)
    query, key, value = 2 * torch.randn(3, n, 16, dtype=torch.float64)
    strides, blocks, scale = -(-n // 8), -(-n // 64), 0.3
    sums = torch.zeros(blocks, blocks, dtype=torch.float64)
    for i in range(strides):
        scores = torch.zeros(i + 1, dtype=torch.float64)
        for s in range(8):
            keys = key[s::8][: i + 1]
            if 8 * i + 7 - s < n:  # no products with padding
                scores[: len(keys)] += keys @ query[8 * i + 7 - s] * scale / 8
        for j, weight in enumerate(scores.softmax(0)):
            sums[i // 8, j // 8] += weight
    mask = torch.zeros(blocks, blocks, dtype=torch.bool)
    for i in range(blocks):
        covered = 0.0
        for j in sorted(range(i + 1), key=lambda j: (j not in (0, i), -sums[i, j].item())):
            mask[i, j] = j in (0, i) or covered < 0.8 * sums[i].sum().item()
            covered += sums[i, j].item()
    read = xattention.chosen_blocks(query, key, scale)
    assert torch.equal(read, mask)
    assert n < 512 or 0 < mask.tril(-1).sum() < blocks * (blocks - 1) // 2  # some are left out, not all
    seen = mask.repeat_interleave(64, 0).repeat_interleave(64, 1)[:n, :n].tril()
    weights = (query @ key.T * scale).masked_fill(~seen, -torch.inf).softmax(-1)
    got = xattention.attend(query, key, value, read, scale)
    torch.testing.assert_close(got, (weights @ value).float(), rtol=1e-4, atol=1e-5)


def line(index: int, way: str, kl: float, bits: float, model: str = "small") -> dict[str, Any]:
    sums: dict[str, Any] = {"lm": {"kl": kl, "n": 10, "bits": bits, "chars": 10}}
    sums.update((task, {"hits": 5, "n": 10, "bits": 0}) for task in ("multikey", "retrieval", "repetition"))
    return dict(model=model, index=index, length=100, way=way, prompt=sums)


def test_a_table_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "speeds", lambda: {("small", "default"): (14.0, 1.5)})
    lines = [
        line(i, way, (way != "0") * (9 + i), 20 + i + (way != "0") * (10 + i / 8))
        for i in range(5)
        for way in ("0", "default")
    ]
    other = [line(i, way, 1, 30, "Other") for i in range(2) for way in ("default", "0")]
    table = study.table(other + lines, "prompt").splitlines()[2:]
    for way, row in zip(("0", "default"), table):
        assert row.startswith(f"| Other | 100 | {way} | 2 |  |")
    dense, default = table[2:]
    assert dense.startswith("| small | 100 | 0 | 5 |  | 0.0000 | 2.2000 [") and dense.endswith("| 0.5000 |")
    # (9 + ... + 13) / 50, and 10.25 bits more in 10 characters
    assert (
        "| 5 | 14.0 (1.50x) | 1.1000 [" in default
        and "| **+1.0250 [+" in default
        and default.endswith("| +0.0000 |")
    )


def test_lines_of_another_model_are_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line(3, "0", 0, 1, "small"), line(4, "0", 0, 1, "other")]
    (tmp_path / "lines").write_text("".join(json.dumps(x) + "\n" for x in lines))
    seen: list[Any] = []
    monkeypatch.setattr(study, "Reader", lambda *_: SimpleNamespace(path=Path("small.gguf")))
    monkeypatch.setattr(study, "measure", lambda a, reader, done, progress: seen.append(done) or iter(()))
    assert study.main(["--model", "small.gguf", "--json", str(tmp_path / "lines")]) == 0
    assert seen == [{(3, 100, "0")}]


def test_the_document_has_the_tables_of_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ROOT / "study/results/prompt_blocks.jsonl"
    document = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/settings.md").write_text(document, encoding="utf-8")
    monkeypatch.setattr(study, "ROOT", tmp_path)
    assert study.main(["--json", str(lines), "--read", "--write"]) == 0
    assert (tmp_path / "docs/settings.md").read_text(encoding="utf-8") == document
    changed = [json.loads(text) for text in lines.read_text().splitlines()]
    changed[-1]["prompt"]["lm"]["bits"] *= 2
    (tmp_path / "lines").write_text("".join(json.dumps(x) + "\n" for x in changed))
    assert study.main(["--json", str(tmp_path / "lines"), "--read", "--write"]) == 0
    assert (tmp_path / "docs/settings.md").read_text(encoding="utf-8") != document
