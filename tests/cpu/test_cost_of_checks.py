# SPDX-License-Identifier: Apache-2.0
"""What the checks of arguments cost in a decode step."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import sparq_ipu
from sparq_reference import SparqSettings


@pytest.mark.slow  # other versions of Python make other calls
def test_checks_of_a_decode_step_are_few_calls():
    """Those of an appended token, the settings and the query. They take 12 to 22 us on a Zen 4, depending on
    its other load; the number of calls does not."""
    cache = sparq_ipu.KVCache(1, 8, 128, 64, device="reference")
    token, query = np.ones((1, 8, 1, 128), np.float16), np.ones((1, 32, 128), np.float16)
    cache.append(token, token)
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    cache.check_tokens(token, token)
    cache.check_query(query, SparqSettings(32, 128, op="sparq_attention"))
    sys.setprofile(None)
    assert 20 < calls < 80, calls
