# SPDX-License-Identifier: Apache-2.0
"""Settings that are not given: no local positions, the keys themselves, every component, rows of 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import strategies

from sparq_reference import KVCache, SparqSettings, WindowSettings, exact, ideal, transfers
from sparq_reference.errors import NotFinite

SETTINGS = dict(rank=20, top_k=20)


def drawn() -> strategies.Attention:
    rng = np.random.default_rng(3)
    return strategies.make_attention(rng, batch=2, n_kv_heads=2, group_size=3, seq_len=150, head_dim=24)


def attention_of(twin: Any, **more: Any) -> np.ndarray:
    tensors = drawn()
    return twin.sparq_attention(*tensors.qkv, **SETTINGS, lengths=tensors.lengths, **more)


@pytest.mark.parametrize("twin", [exact, ideal], ids=["exact", "ideal"])
@pytest.mark.parametrize(
    ("default", "other"),
    [(dict(n_local=0), dict(n_local=9)), (dict(mean_value=True), dict(mean_value=False))],
)
def test_attention(twin: Any, default: dict[str, Any], other: dict[str, Any]) -> None:
    same = attention_of(twin)
    np.testing.assert_array_equal(same, attention_of(twin, **default))
    np.testing.assert_array_equal(same, attention_of(twin, index_bits=16, index_components=0))
    steps = twin.sparq_steps(*drawn().qkv, SparqSettings(20, 20), lengths=drawn().lengths)
    np.testing.assert_array_equal(same, steps.output)
    assert np.any(same != attention_of(twin, **other))


@pytest.mark.parametrize("twin", [exact, ideal], ids=["exact", "ideal"])
def test_components_and_positions(twin: Any) -> None:
    query = np.float16([[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]]])
    components = twin.query_components(query, rank=2, n_kv_heads=1)
    assert components.ravel().tolist() == [10, 11]
    weights = np.float32([[[0.4, 0.3, 0.2, 0.1]]])
    positions, _ = twin.key_topk(weights, np.float32([[1]]), n_kv_heads=1, top_k=2)
    assert positions.ravel().tolist() == [0, 1]


def test_numbers_of_a_query_are_checked() -> None:
    cache = KVCache(1, 1, 8, 64)
    cache.append(*np.ones((2, 1, 1, 3, 8), np.float16))
    query = np.full((1, 1, 8), np.nan, np.float16)
    for attend in (
        cache.attention,
        cache.dense_attention,
        lambda q: cache.sparq_attention(q, rank=2, top_k=2),
    ):
        with pytest.raises(NotFinite, match="query"):
            attend(query)


def test_bytes_of_a_row() -> None:
    assert transfers.row_bytes(64) == transfers.row_bytes(64, 16) == 4 * 64


def test_the_shortest_element_is_named() -> None:
    cache = KVCache(2, 1, 8, 64)
    rows = np.ones((2, 1, 3, 8), np.float16)
    cache.append(rows, rows, [3, 1])
    with pytest.raises(ValueError, match="got 1 positions of element 1"):
        cache.observe(np.ones((2, 1, 2, 8), np.float16), WindowSettings(4))
