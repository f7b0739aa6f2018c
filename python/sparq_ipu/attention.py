# SPDX-License-Identifier: Apache-2.0
"""Decode attention over a `KVCache`: dense, SparQ, and the window attention of ALISA."""

from __future__ import annotations

import numpy as np

from sparq_ipu.cache import KVCache
from sparq_ipu.kernels import Settings
from sparq_reference import checks
from sparq_reference.settings import SparqSettings, WindowSettings, op_of


def dense_attention(query: np.ndarray, cache: KVCache) -> np.ndarray:
    """Dense attention of one query token per batch element over all cached positions.

    y = softmax(q K^T / sqrt(head_dim)) V

    Args:
        query: (batch, n_heads, head_dim) float16; n_heads a multiple of the cache's n_kv_heads.
        cache: keys and values; at least one position in every batch element.

    Returns:
        (batch, n_heads, head_dim) float16, bit for bit `sparq_reference.exact.dense_attention`.

    Raises:
        ValueError: wrong shape or dtype, NaN or infinity, an empty batch element.
    """
    return attention(query, cache)


def sparq_attention(
    query: np.ndarray, cache: KVCache, *, rank: int, top_k: int, n_local: int = 0, mean_value: bool = True
) -> np.ndarray:
    """SparQ attention (arXiv:2312.04985, Algorithm 1) of one query token per batch element.

    Reads `rank` components of every key, then the keys and values of `top_k` positions only.

    Args:
        query, cache: see `dense_attention`. Positions are scored from the cache's key index.
        rank: components of the query used to score positions, 1 <= rank <= head_dim (paper: r).
        top_k: positions attended to, at least 1; all of them where an element has no more (paper: k).
        n_local: of these, the most recent positions that are always taken, 0 <= n_local <= top_k (paper: l).
        mean_value: give the weight of the other positions to the mean of all values (paper: v-bar and alpha).

    Returns:
        (batch, n_heads, head_dim) float16, bit for bit `sparq_reference.exact.sparq_attention`.

    Raises:
        ValueError: as `dense_attention`; a setting out of range.
    """
    op = "sparq_attention"
    return attention(query, cache, SparqSettings(rank, top_k, n_local, mean_value, op=op))


def window_attention(
    query: np.ndarray, cache: KVCache, *, top_k: int, n_local: int | None = None, n_recent: int = 32
) -> np.ndarray:
    """Window attention of one query token per batch element: ALISA's sparse window attention
    (arXiv:2403.17312, Algorithm 1), or local or strided attention (docs/alisa.md).

    The positions are chosen before the query is seen, one set for all heads: the last n_local, and those that
    got most attention in the last n_recent steps. Each call is such a step: the cache remembers it, until
    `reset`. After a prompt, `KVCache.observe` puts the prompt's last steps there.

    Args:
        query, cache: see `dense_attention`; not a cache in SRAM or over several IPUs.
        top_k, n_local, n_recent: see `sparq_ipu.WindowSettings`; n_recent the same in all calls.

    Returns:
        (batch, n_heads, head_dim) float16, bit for bit `sparq_reference.exact.window_attention`.

    Raises:
        ValueError: as `dense_attention`; a setting out of range.
    """
    op = "window_attention"
    settings = WindowSettings(top_k, n_local, n_recent, op=op)  # type: ignore[arg-type]  # None: half
    return attention(query, cache, settings)


def attention(query: np.ndarray, cache: KVCache, settings: Settings = None) -> np.ndarray:
    """`sparq_attention` or `window_attention` with these settings; `dense_attention` where they are None."""
    op = op_of(settings)
    check_cache(op, cache)
    cache.check_query(query, settings)
    return cache.one_layer(op).attend(query, settings)


def check_cache(op: str, cache: object) -> None:
    """Refuse what is no `KVCache`."""
    if not isinstance(cache, KVCache):
        checks.fail(op, "cache", "be a sparq_ipu.KVCache", type(cache).__name__)
