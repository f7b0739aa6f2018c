# SPDX-License-Identifier: Apache-2.0
"""KVCache: appending, lengths, capacity, reordering; whatever fails leaves it as it was."""

from __future__ import annotations

import numpy as np
import pytest
import strategies
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sparq_reference import KVCache, SparqSettings, exact

N_KV_HEADS, HEAD_DIM, CAPACITY = 2, 8, 70


class CacheAgainstLists(RuleBasedStateMachine):
    """Any sequence of operations leaves the cache equal to plain lists of rows."""

    @initialize(batch=st.integers(1, 3), seed=st.integers(0, 2**32 - 1), index_bits=strategies.index_bits)
    def start(self, batch: int, seed: int, index_bits: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.cache = KVCache(batch, N_KV_HEADS, HEAD_DIM, CAPACITY, index_bits=index_bits)
        self.rows: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(batch)]

    def tokens(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        shape = (len(self.rows), N_KV_HEADS, n, HEAD_DIM)
        return tuple(strategies.tensors(kind, shape, self.rng) for kind in ("normal", "wide"))

    @rule(n=st.sampled_from((1, 2, 7, 8, 30)), ragged=st.booleans())
    def append(self, n: int, ragged: bool) -> None:
        key, value = self.tokens(n)
        lengths = self.rng.integers(0, n + 1, len(self.rows)) if ragged else None
        counts = [n] * len(self.rows) if lengths is None else lengths.tolist()
        if lengths is not None:  # what is not real may be anything
            for b, count in enumerate(counts):
                key[b, :, count:] = np.nan
                value[b, :, count:] = np.inf
        before = self.state()
        if any(len(rows) + count > CAPACITY for rows, count in zip(self.rows, counts)):
            with pytest.raises(ValueError, match=r"^append: length must be at most capacity=70 "):
                self.cache.append(key, value, lengths)
            for got, expected in zip(self.state(), before):
                np.testing.assert_array_equal(got, expected)
            return
        self.cache.append(key, value, lengths)
        for b, count in enumerate(counts):
            self.rows[b] += [(key[b, :, t], value[b, :, t]) for t in range(count)]

    @rule()
    def reset(self) -> None:
        self.cache.reset()
        self.rows = [[] for _ in self.rows]

    @rule(seed=st.integers(0, 100))
    def reorder(self, seed: int) -> None:
        index = np.random.default_rng(seed).integers(0, len(self.rows), len(self.rows))
        self.cache.reorder(index)
        self.rows = [list(self.rows[i]) for i in index]

    @rule(seed=st.integers(0, 100))
    def truncate(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        kept = [int(rng.integers(0, len(rows) + 1)) for rows in self.rows]
        self.cache.truncate(np.array(kept))
        self.rows = [rows[:n] for rows, n in zip(self.rows, kept)]

    @precondition(lambda self: all(self.rows))
    @rule()
    def attend(self) -> None:
        query = strategies.tensors("normal", (len(self.rows), 2 * N_KV_HEADS, HEAD_DIM), self.rng)
        sparq = dict(rank=4, top_k=9, n_local=3)
        dense_y = self.cache.dense_attention(query)
        sparq_y = self.cache.sparq_attention(query, **sparq)
        for b, rows in enumerate(self.rows):
            key, value = (np.stack([row[i] for row in rows], axis=1)[None] for i in (0, 1))
            one = query[b : b + 1]
            np.testing.assert_array_equal(dense_y[b], exact.dense_attention(one, key, value)[0])
            expected = exact.sparq_attention(one, key, value, index_bits=self.cache.index_bits, **sparq)
            np.testing.assert_array_equal(sparq_y[b], expected[0])

    def state(self) -> tuple[np.ndarray, ...]:
        cache = self.cache
        return cache.key.copy(), cache.value.copy(), cache.lengths, cache.value_sum

    @invariant()
    def equals_the_lists(self) -> None:
        if not hasattr(self, "cache"):
            return
        lengths = [len(rows) for rows in self.rows]
        assert self.cache.lengths.tolist() == lengths
        assert self.cache.key.shape == (len(self.rows), N_KV_HEADS, max(lengths), HEAD_DIM)
        for b, rows in enumerate(self.rows):
            total = np.zeros((N_KV_HEADS, HEAD_DIM), np.float32)
            for t, (key, value) in enumerate(rows):
                np.testing.assert_array_equal(self.cache.key[b, :, t], key)
                np.testing.assert_array_equal(self.cache.value[b, :, t], value)
                total = total + value.astype(np.float32)
            np.testing.assert_array_equal(self.cache.value_sum[b], total)
            assert np.isnan(self.cache.key[b, :, len(rows) :]).all()
            assert np.isnan(self.cache.value[b, :, len(rows) :]).all()


TestCacheAgainstLists = CacheAgainstLists.TestCase
# an example is a whole history: a third as many, shorter ones, take the time of any other test
TestCacheAgainstLists.settings = settings(max_examples=settings().max_examples // 3, stateful_step_count=20)


def filled(lengths: tuple[int, ...] = (3, 5)) -> KVCache:
    cache = KVCache(len(lengths), 1, 8, 6)
    rng = np.random.default_rng(0)
    shape = (len(lengths), 1, max(lengths), 8)
    cache.append(*(strategies.tensors("normal", shape, rng) for _ in range(2)), np.array(lengths))
    return cache


def test_sizes() -> None:
    cache = KVCache(2, 3, 16, 5)
    assert (cache.batch, cache.n_kv_heads, cache.head_dim, cache.capacity) == (2, 3, 16, 5)
    assert cache.lengths.tolist() == [0, 0] and cache.key.shape == (2, 3, 0, 16)
    assert cache.key.dtype == cache.value.dtype == np.float16
    assert cache.value_sum.dtype == np.float32 and (cache.value_sum == 0).all()


def test_what_is_handed_out_cannot_change_the_cache() -> None:
    cache = filled()
    cache.lengths[:] = 0
    cache.value_sum[:] = 0
    assert cache.lengths.tolist() == [3, 5] and cache.value_sum.any()
    for view in (cache.key, cache.value):
        with pytest.raises(ValueError):
            view[:] = 0


def test_mean_value_is_an_option() -> None:
    cache = filled()
    query = strategies.tensors("normal", (2, 4, 8), np.random.default_rng(1))
    on, off = (cache.sparq_attention(query, rank=4, top_k=2, mean_value=choice) for choice in (True, False))
    assert not np.array_equal(on, off)


def test_unchecked_append_takes_nan() -> None:
    cache = KVCache(1, 1, 8, 2)
    nan = np.full((1, 1, 1, 8), np.nan, np.float16)
    cache.append(nan, nan, check_finite=False)
    assert cache.lengths.tolist() == [1]


def test_a_call_with_a_cache_s_spec_is_attention_of_such_a_cache() -> None:
    rng = np.random.default_rng(3)
    key, value = (strategies.tensors("normal", (2, N_KV_HEADS, CAPACITY, HEAD_DIM), rng) for _ in range(2))
    query = strategies.tensors("normal", (2, 4, HEAD_DIM), rng)
    cache = KVCache(2, N_KV_HEADS, HEAD_DIM, CAPACITY, index_bits=2, row_bits=8)
    cache.append(key, value)
    found = []
    for how in (SparqSettings(4, 9, 2), None):
        found.append(exact.attention(query, key, value, how, cache.spec))
        np.testing.assert_array_equal(found[-1], cache.attention(query, how))
        others = (exact.attention(query, key, value, how, spec) for spec in (None, cache.spec.plain()))
        assert all((found[-1] != other).any() for other in others)
    assert (found[0] != found[1]).any()
