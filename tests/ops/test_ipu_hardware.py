# SPDX-License-Identifier: Apache-2.0
"""What only hardware can confirm (docs/exactness.md, E8), beside the conformance vectors, which
bench/hardware_day.py plays on an IPU. Skipped, by name, where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import vertex

import sparq_ipu
from sparq_reference import numerics

pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")
DEVICE = "ipu"
pytestmark = pytest.mark.skipif(
    "ipu" not in sparq_ipu.available_devices(), reason="no IPU: rounding on silicon was not checked"
)


def test_the_same_bits_again() -> None:
    """Stochastic rounding is off; no result depends on what was in memory, or on which worker was first."""
    rng = np.random.default_rng(4)
    key, value = rng.standard_normal((2, 1, 4, 600, 64)).astype(np.float16)
    query = rng.standard_normal((1, 8, 64)).astype(np.float16)
    outputs = []
    for _ in range(2):
        cache = sparq_ipu.KVCache(1, 4, 64, 600, index_bits=4, device=DEVICE)
        cache.append(key, value)
        outputs += [sparq_ipu.sparq_attention(query, cache, rank=16, top_k=64) for _ in range(5)]
    assert len({output.tobytes() for output in outputs}) == 1


def test_division_and_narrowing_on_an_ipu() -> None:
    """fp32 divide and fp32 to fp16 at ties between fp16 neighbours, the two doubtful ones among them."""
    ties = (np.arange(0, 2048, dtype=np.float64) + 0.5) * 2.0**-24
    accumulator = np.concatenate([ties, np.random.default_rng(1).standard_normal(2048)]).astype(np.float32)
    sums = np.array([1.0], np.float32)
    for divisor in (1.0, 3.0):
        sums[0] = divisor
        fields = dict(partials=accumulator, sums=sums, output=np.zeros(4096, np.float16))
        output = vertex.run_on(DEVICE, "CombineList", fields, dict(nBlocks=1, groupSize=1, width=4096))[
            "output"
        ]
        expected = numerics.to_half(numerics.flush(accumulator) / sums)
        np.testing.assert_array_equal(output.view(np.uint16), expected.view(np.uint16))
