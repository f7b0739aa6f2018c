# SPDX-License-Identifier: Apache-2.0
"""Caches on device "cpu" for tests, and the comparison with the reference."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from bits import assert_bits
from strategies import Attention

from sparq_ipu import KVCache, dense_attention, sparq_attention
from sparq_reference import exact, row_codes

try:
    from sparq_ipu import _cpu
except ImportError:  # the tests are then skipped, by name
    ISAS: tuple[str, ...] = ()
else:
    #: instruction sets that this machine has, for tests in which one result of the reference serves all
    ISAS = tuple(_cpu.available_isas())

#: thread counts that every result is checked with
THREADS = (1, 2, 3, 8)


def make_cache(like: Any, capacity: int | None = None, **options: Any) -> KVCache:
    """An empty cache on device "cpu" for tensors shaped like those of `like` (a strategies.Attention)."""
    batch, n_kv_heads, seq_len, head_dim = like.key.shape
    capacity = seq_len if capacity is None else capacity
    return KVCache(batch, n_kv_heads, head_dim, capacity, device="cpu", **options)


def filled_cache(like: Any, **options: Any) -> KVCache:
    """The same with all tokens appended at once."""
    cache = make_cache(like, **options)
    cache.append(like.key, like.value, like.lengths)
    return cache


def expected_attention(tensors: Attention, index_bits: int, settings: dict) -> np.ndarray:
    """What the reference computes."""
    return exact.sparq_attention(*tensors.qkv, lengths=tensors.lengths, index_bits=index_bits, **settings)


def check_attention(
    tensors: Attention,
    index_bits: int,
    settings: dict,
    isas: tuple[str, ...] = ISAS,
    threads: tuple[int, ...] = THREADS,
    more_capacity: int = 0,
    row_bits: int = 16,
) -> None:
    """SparQ against the reference; dense attention, which reads no index, too."""
    held = {name: row_codes.round_rows(getattr(tensors, name), row_bits) for name in ("key", "value")}
    expected = expected_attention(tensors._replace(**held), index_bits, settings)
    dense = exact.dense_attention(*tensors._replace(**held).qkv, lengths=tensors.lengths)
    for isa, n_threads in itertools.product(isas, threads):
        what = f"{isa}, {n_threads} threads, {index_bits} bits, rows of {row_bits}"
        capacity = tensors.key.shape[2] + more_capacity
        bits = dict(index_bits=index_bits, row_bits=row_bits)
        cache = filled_cache(tensors, isa=isa, n_threads=n_threads, capacity=capacity, **bits)
        assert_bits(sparq_attention(tensors.query, cache, **settings), expected, what)
        assert_bits(dense_attention(tensors.query, cache), dense, f"dense, {what}")
