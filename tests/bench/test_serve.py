# SPDX-License-Identifier: Apache-2.0
"""The figures of bench/serve.py, from answers that are known."""

from __future__ import annotations

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


def test_time_between_tokens_within_a_time() -> None:
    one = bench.Answer(sent=0.0, times=[1.0, 2.0, 4.0, 7.0])
    other = bench.Answer(sent=0.0, times=[5.0])
    assert bench.between([one, other], 1.0, 4.0).tolist() == [1000, 2000]
    assert bench.between([one, other], 1.5, 4.5).tolist() == [2000]
    assert bench.between([one, other], 1.5, 4.5, is_partly=True).tolist() == [1000, 2000, 3000]
    assert len(bench.between([one, other], 7.0, 9.0)) == 0


def test_recorded_requests() -> None:
    every = bench.recorded(None, None)
    assert len(every) == 32 and min(every)[0] == 200 and max(every) == (14050, 39)
    fitting = bench.recorded(8192, None)
    assert len(fitting) == 30 and max(fitting)[0] == 7650  # with an answer behind it
    assert bench.recorded(8192, 4) == fitting[:4]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--threads", "0"], "--threads: must be an integer in [1, 1024], got '0'"),
        (["--new", "-1"], "--new: must be a positive integer, got '-1'"),
        (["--at-once", "x"], "--at-once: must be a positive integer, got 'x'"),
        (["--soak", "0"], "--soak: must be a positive number, got '0'"),
        (["--model", "nowhere"], "--model: load_model: path must exist, got "),
        (["--servers", "llama"], "--gguf must be a file, for llama, got None"),
    ],
)
def test_what_is_refused_before_any_work(words: list, message: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(["--model", "nowhere", *words])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
