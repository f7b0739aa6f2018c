# SPDX-License-Identifier: Apache-2.0
"""Keys of which a rounding rule that is nearly right gives other bits."""

from __future__ import annotations

import numpy as np
from strategies import half

from sparq_reference.numerics import to_half


def columns_with_a_step_near_a_tie(n: int, index_bits: int) -> np.ndarray:
    """(n, 64) float16: components of a block whose step is another number where the range is divided by the
    largest code, and not multiplied by its inverse (E9). Of a million random ranges, hundreds are such,
    with 2 bits a few, which are there several times then."""
    rng = np.random.default_rng(index_bits)
    low, high = half(rng.uniform(-1, 1, 1 << 20) * 2.0**-6), half(rng.uniform(1, 8, 1 << 20))
    span, most = high.astype(np.float32) - low.astype(np.float32), np.float32(2**index_bits - 1)
    differ = np.flatnonzero(to_half(span * (np.float32(1) / most)) != to_half(span / most))
    assert len(differ)
    differ = np.resize(differ, n)
    low, high = low[differ], high[differ]
    columns = half(np.linspace(low.astype(np.float64), high.astype(np.float64), 64, axis=1))
    columns[:, 0], columns[:, -1] = low, high
    return rng.permuted(columns, axis=1)
