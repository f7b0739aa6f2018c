# SPDX-License-Identifier: Apache-2.0
"""bench/drafts.py: its rows, and the figures of docs/models.md."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import drafts as program
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny model in place of the one that has a name, and a text of its words."""
    for name in ("torch", "transformers", "tokenizers", "sparq_ipu._cpu"):
        pytest.importorskip(name)
    from lean_steps import a_wide_model
    from tiny_models import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    model = a_wide_model("int4", "Mistral", vocab_size=112)
    monkeypatch.setattr("sparq_ipu.models.smollm2_path", lambda: None)
    monkeypatch.setattr("sparq_ipu.models.load_model", lambda *_, **named: (model, tokenizer))
    monkeypatch.setattr(program, "TEXTS", {"words": "w1 w2 w3 w4 w5 " * 8})


WORDS = ["--new-tokens", "6", "--rounds", "2", "--threads", "1"]


@pytest.mark.usefixtures("tiny")
def test_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(WORDS) == 0
    said = capsys.readouterr()
    (row,) = map(json.loads, said.out.splitlines())
    assert (row["text"], row["n_prompt"], row["n_new"], row["n_threads"]) == ("words", 40, 6, 1)
    for name in ("tokens_per_second", "tokens_per_second_without"):
        assert len(row[name]) == 2 and min(row[name]) > 0
        assert program.spread(row[name]) in said.err
    assert row["command"] == f"python bench/drafts.py {' '.join(WORDS)}"


@pytest.mark.usefixtures("tiny")
def test_other_tokens_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from sparq_ipu.transformers.generation import runs

    original, said = runs.generate, []  # type: tuple[Any, list[int]]

    def generate(*given: Any, **named: Any) -> Any:
        run = original(*given, **named)
        said.append(1)
        run.tokens[0] += len(said) == 2
        return run

    monkeypatch.setattr(runs, "generate", generate)
    with pytest.raises(AssertionError, match="other tokens"):
        program.main(WORDS)


@pytest.mark.parametrize("flag", ["--new-tokens", "--rounds", "--threads"])
def test_numbers_out_of_range_end_before_the_model_is_loaded(
    flag: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "run", lambda _: pytest.fail("it ran"))
    with pytest.raises(SystemExit):
        program.main([flag, "0"])
    assert flag in capsys.readouterr().err


def test_the_page_has_the_figures_of_the_rows() -> None:
    lines = (ROOT / "bench/results/drafts.jsonl").read_text().splitlines()
    rows = {row["text"]: row for row in map(json.loads, lines)}
    assert set(rows) == {"edit", "prose"}
    page = " ".join((ROOT / "docs/models.md").read_text().split())
    for text, words, most in (
        ("edit", "{gain:.2f} times as fast as without ({right} of {drafted} drafted tokens were right)", 9),
        ("prose", "free prose about as fast ({right} of {drafted})", 1.1),
    ):
        row = rows[text]
        with_drafts, without = (
            statistics.median(row[name]) for name in ("tokens_per_second", "tokens_per_second_without")
        )
        gain = with_drafts / without
        assert 0.9 <= gain <= most
        assert words.format(gain=gain, right=row["n_accepted"], drafted=row["n_drafted"]) in page
        assert f"{row['cpu']}, {row['n_threads']} threads, `{row['command']}`" in page
