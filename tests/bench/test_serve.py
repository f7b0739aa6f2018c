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
