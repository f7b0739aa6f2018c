# SPDX-License-Identifier: Apache-2.0
"""What the checks of arguments cost in a decode step."""

from __future__ import annotations

import time

import numpy as np
import pytest

import sparq_ipu
from sparq_reference import SparqSettings


@pytest.mark.slow
def test_checks_of_a_decode_step_take_less_than_20_microseconds():
    """Those of an appended token, the settings and the query, the quickest of many runs: 12 us measured."""
    cache = sparq_ipu.KVCache(1, 8, 128, 64, device="reference")
    token, query = np.ones((1, 8, 1, 128), np.float16), np.ones((1, 32, 128), np.float16)
    cache.append(token, token)

    def step() -> None:
        cache.check_tokens(token, token)
        cache.check_query(query, SparqSettings(32, 128, op="sparq_attention"))

    quickest = float("inf")
    for _ in range(300):
        start = time.perf_counter()
        for _ in range(20):
            step()
        quickest = min(quickest, (time.perf_counter() - start) / 20)
    assert quickest < 20e-6
