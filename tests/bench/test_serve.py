# SPDX-License-Identifier: Apache-2.0
"""The figures of bench/serve.py, from answers that are known."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

import pytest
import serve as bench


def test_the_figures_of_answers() -> None:
    one = bench.Answer(sent=0.0, times=[1.0, 2.0, 3.0, 4.0], n_new=4)
    other = bench.Answer(sent=0.0, times=[2.0, 3.0, 4.0, 7.0], n_new=8)  # of two tokens a piece
    found = bench.summary([one, other])
    assert found["n_new"] == 12 and found["tokens_per_second"] == pytest.approx(11 / 6)
    assert found["together_tokens_per_second"] == pytest.approx((2 + 2 * 2) / 2)
    assert found["overall_tokens_per_second"] == pytest.approx(12 / 7)
    assert found["first_seconds"][0] == pytest.approx(1.5)
    assert found["between_milliseconds"][0] == pytest.approx(1000)
    later = bench.Answer(sent=0.0, times=[5.0, 6.0], n_new=2)
    assert bench.summary([one, later])["together_tokens_per_second"] is None
    # written from 1 to 4 and from 5 to 6: three tokens of four, and one of two
    assert bench.summary([one, later])["writing_tokens_per_second"] == pytest.approx(4 / 4)
    silent = bench.Answer(sent=0.0)
    assert bench.summary([one, silent]) == {**bench.summary([one]), "n_silent": 1}
    with pytest.raises(RuntimeError, match="1 of 1 answers had no text"):
        bench.summary([silent])


def test_time_that_is_in_any_interval() -> None:
    assert bench.covered([(5.0, 6.0), (1.0, 4.0), (2.0, 3.0), (3.5, 4.5)]) == pytest.approx(4.5)


class Asked:
    """What a server was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    async def ask(self, prompt: str, n_new: int) -> Any:
        """An answer of two pieces."""
        self.asked.append((prompt, n_new))
        return bench.Answer(sent=0.0, times=[1.0, 2.0], text="!", n_new=n_new)


class Named:
    """Prompts whose text says what they are."""

    def text(self, n_tokens: int, start: int) -> str:
        """Their length and beginning."""
        return f"<{n_tokens} {start}>"


def test_requests_at_once() -> None:
    """As many prompts as are asked for, all different, of that length."""
    load = Asked()
    found = asyncio.run(bench.together(load, argparse.Namespace(new=9), Named(), 700, 2))
    first, other = load.asked
    assert first != other and all("<700 " in text and n_new == 9 for text, n_new in load.asked)
    assert found["n_new"] == 18 and len(load.asked) == 2


@pytest.mark.parametrize(
    "words, message",
    [
        (["--threads", "0"], "--threads: must be an integer in [1, 1024], got '0'"),
        (["--new", "-1"], "--new: must be a positive integer, got '-1'"),
        (["--at-once", "x"], "--at-once: must be a positive integer, got 'x'"),
        (["--soak", "0"], "--soak: must be a positive number, got '0'"),
        (["--model", "nowhere"], "--model: load_model: path must exist, got "),
        (["--servers", "llama"], "--gguf must be a file, for llama and --weights, got None"),
        (["--model", "GGUF", "--servers", "transformers"], "--model must be a directory with --gguf or"),
        (["--model", "GGUF", "--gguf", "GGUF"], "--model must be a directory with --gguf or"),
        (["--weights", "int4"], "--gguf must be a file, for llama and --weights, got None"),
    ],
)
def test_what_is_refused_before_any_work(
    words: list, message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "config.json").touch()
    (tmp_path / "x.gguf").touch()
    words = [word.replace("GGUF", str(tmp_path / "x.gguf")) for word in words]
    with pytest.raises(SystemExit) as ended:
        bench.main(["--model", str(tmp_path), *words])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
