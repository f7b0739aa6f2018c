# SPDX-License-Identifier: Apache-2.0
"""What only hardware can confirm (docs/exactness.md, E8): skipped, by name, where there is no IPU."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import make_attention

import sparq_ipu
from sparq_reference import exact, numerics

_core = pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")
pytestmark = pytest.mark.skipif(
    "ipu" not in sparq_ipu.available_devices(), reason="no IPU: rounding on silicon was not checked"
)


def test_attention_on_an_ipu_equals_reference() -> None:
    a = make_attention(
        np.random.default_rng(0), batch=2, n_kv_heads=2, group_size=2, seq_len=700, head_dim=64
    )
    cache = sparq_ipu.KVCache(2, 2, 64, 1024, device="ipu")
    cache.append(a.key, a.value)
    settings = dict(rank=16, top_k=64, n_local=8)
    for output, expected in (
        (sparq_ipu.dense_attention(a.query, cache), exact.dense_attention(*a.qkv)),
        (sparq_ipu.sparq_attention(a.query, cache, **settings), exact.sparq_attention(*a.qkv, **settings)),
    ):
        np.testing.assert_array_equal(output.view(np.uint16), expected.view(np.uint16))


def test_division_and_narrowing_on_an_ipu() -> None:
    """fp32 divide and fp32 to fp16 at ties between fp16 neighbours, the two doubtful ones among them."""
    ties = (np.arange(0, 2048, dtype=np.float64) + 0.5) * 2.0**-24
    accumulator = np.concatenate([ties, np.random.default_rng(1).standard_normal(2048)]).astype(np.float32)
    sums = np.array([1.0], np.float32)
    for divisor in (1.0, 3.0):
        sums[0] = divisor
        output = _core.run_vertex(
            "sparq::CombineDense",
            dict(accumulator=accumulator, sums=sums, output=np.zeros(4096, np.float16)),
            dict(groupSize=1, width=4096),
            "ipu",
        )["output"]
        expected = numerics.to_half(numerics.flush(accumulator) / sums)
        np.testing.assert_array_equal(output.view(np.uint16), expected.view(np.uint16))
