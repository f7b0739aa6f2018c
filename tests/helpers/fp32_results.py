# SPDX-License-Identifier: Apache-2.0
"""Results of the exact twin before its last rounding."""

from __future__ import annotations

import numpy as np
import strategies

from sparq_reference import SparqSettings, exact
from sparq_reference.twin import each_kv_head


def before_narrowing(
    x: strategies.Attention, settings: SparqSettings, index_bits: int = 16
) -> list[np.ndarray]:
    """Dense and SparQ attention in float32: fp16 outputs hide most errors of a few ulp."""
    dense = np.empty(x.query.shape, np.float32)
    for b, kv, heads in each_kv_head(x.query, x.key):
        n = x.lengths[b]
        dense[b, heads] = exact._attend(x.query[b, heads], x.key[b, kv, :n], x.value[b, kv, :n])[0]
    steps = exact.sparq_steps(*x.qkv, settings, index_bits=index_bits, lengths=x.lengths)
    sparq = exact.combine(steps.attended, steps.alpha, steps.mean) if settings.mean_value else steps.attended
    return [dense, sparq]
