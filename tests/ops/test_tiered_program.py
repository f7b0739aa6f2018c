# SPDX-License-Identifier: Apache-2.0
"""A cache in three tiers as a whole: whatever is hot, and however it got there, the bits of the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from vertex import assert_bits

from sparq_ipu import KVCache, sparq_attention


class Both:
    """The same tokens in a tiered cache on the emulator and in one of the reference."""

    def __init__(self, batch: int, index_bits: int, n_tiles: int, tiers: dict[str, Any]):
        spec: dict[str, Any] = dict(batch=batch, n_kv_heads=2, head_dim=24, capacity=400)
        spec["index_bits"] = index_bits
        self.rng, self.batch = np.random.default_rng(n_tiles), batch
        self.tiered = KVCache(
            **spec, memory="tiered", device="emulator", n_layers=2, n_tiles=n_tiles, **tiers
        )
        self.reference = [KVCache(**spec, device="reference") for _ in range(2)]

    def numbers(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(np.float16)

    def append(self, layer: int, n: int, least: int | None = None) -> None:
        """n tokens to the first element, `least` to the last, if it is given; between them to the others."""
        counts = None if least is None else np.linspace(n, least, self.batch).astype(int)
        key, value = self.numbers(self.batch, 2, n, 24), self.numbers(self.batch, 2, n, 24)
        for cache in (self.tiered.layer(layer), self.reference[layer]):
            cache.append(key, value, counts)

    def attend(self, layer: int) -> None:
        query, options = self.numbers(self.batch, 4, 24), dict(rank=8, top_k=24, n_local=4)
        expected = sparq_attention(query, self.reference[layer], **options)
        assert_bits(sparq_attention(query, self.tiered.layer(layer), **options), expected)


@pytest.mark.parametrize(
    ("batch", "index_bits", "n_tiles", "tiers"),
    [
        (2, 8, 40, dict(hot_rows=24)),  # as few as can be, two sets of keys
        (2, 4, 9, {}),  # several parts
        (2, 8, 3, dict(hot_rows=40)),  # rounds of KV heads
        (9, 4, 40, {}),  # groups of KV heads that fetch their own misses
    ],
)
def test_tokens_one_by_one(batch: int, index_bits: int, n_tiles: int, tiers: dict[str, Any]) -> None:
    """Through the end of a block, each appended row hot at once; layers between each other; and again
    after a reset, when what was hot is another's."""
    both = Both(batch, index_bits, n_tiles, tiers)
    both.append(0, 253, 61)
    both.append(1, 20, 3)
    for _ in range(4):
        for layer in (0, 1):
            both.attend(layer)
            both.append(layer, 1)
            both.attend(layer)
    for cache in (both.tiered.layer(0), both.reference[0]):
        cache.reset()
    both.append(0, 130)
    both.attend(0)
    both.attend(1)
