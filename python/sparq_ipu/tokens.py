# SPDX-License-Identifier: Apache-2.0
"""Several tokens in one step: as one after another, to the bit."""

from __future__ import annotations

from typing import Iterator

import numpy as np

from sparq_ipu.attention import attention, check_cache
from sparq_ipu.cache import KVCache
from sparq_ipu.kernels import Settings
from sparq_reference import checks
from sparq_reference.settings import SparqSettings, WindowSettings, op_of

#: most tokens of one step
MAX_TOKENS = 32
#: devices that take more than one: the program of an IPU is compiled for one token a call
DEVICES = ("cpu", "reference")


def append_and_attend(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, cache: KVCache, settings: Settings = None
) -> np.ndarray:
    """Append tokens to every batch element, and attend from each of them to all positions up to its own. The
    result and the cache are, bit for bit, those of `cache.append` and `attention` for one token after
    another: with settings, each token selects positions for itself.

    Args:
        query: (batch, n_heads, n_tokens, head_dim) float16, n_tokens in [1, 32].
        key, value: (batch, n_kv_heads, n_tokens, head_dim) float16.
        cache: on "cpu" or "reference" if there is more than one token.
        settings: `sparq_ipu.SparqSettings` or `sparq_ipu.WindowSettings`; None: dense attention. This and, on
            a CPU, a window without selection (n_local = top_k) are one call for all tokens.

    Returns:
        (batch, n_heads, n_tokens, head_dim) float16.

    Raises:
        ValueError: as `KVCache.append` and the attention functions; a number of tokens out of range; several
            tokens on another device. The cache is then unchanged.
    """
    if not isinstance(settings, (SparqSettings, WindowSettings, type(None))):
        rule = "be sparq_ipu.SparqSettings, sparq_ipu.WindowSettings or None"
        checks.fail("append_and_attend", "settings", rule, type(settings).__name__)
    _check(op_of(settings), query, key, value, cache, settings)
    is_local = isinstance(settings, WindowSettings) and settings.n_local == settings.top_k
    together = settings is None or (is_local and cache.device == "cpu")
    if not together or query.shape[2] == 1:
        steps = one_by_one(query, key, value, cache)
        return np.stack([attention(token, cache, settings) for token in steps], axis=2)
    backend = cache.one_layer("append")
    backend.append(key, value, np.full(cache.batch, key.shape[2], np.int64))
    return backend.attend(query, settings)


def one_by_one(query: np.ndarray, key: np.ndarray, value: np.ndarray, cache: KVCache) -> Iterator[np.ndarray]:
    """Appends tokens one by one. Yields the query (batch, n_heads, head_dim) of each while its token is the
    last one held."""
    for index in range(query.shape[2]):
        token = slice(index, index + 1)
        cache.append(key[:, :, token], value[:, :, token])
        yield np.ascontiguousarray(query[:, :, index])


def _check(
    op: str, query: np.ndarray, key: np.ndarray, value: np.ndarray, cache: KVCache, settings: Settings
) -> None:
    """As `append_and_attend` refuses arguments."""
    if not isinstance(query, np.ndarray) or query.ndim != 4:
        got = getattr(query, "shape", type(query).__name__)
        checks.fail(op, "query", "have shape (batch, n_heads, n_tokens, head_dim)", got)
    n_tokens = checks.check_integer(op, "n_tokens", query.shape[2], 1, MAX_TOKENS)
    check_cache(op, cache)
    for index in range(n_tokens):
        cache.check_query(query[:, :, index], settings, n_new=1)
    if settings is not None:
        settings.check_heads(op, query.shape[1])
    cache.one_layer(op).check_settings(op, settings)
    cache.check_tokens(key, value, op=op)
    if key.shape[2] != n_tokens:
        checks.fail(op, "key", f"have the n_tokens={n_tokens} of query", key.shape)
    if n_tokens > 1 and cache.device not in DEVICES:
        rule = f"be {' or '.join(map(repr, DEVICES))} for {n_tokens} tokens a call"
        checks.fail(op, "device", rule, f"{cache.device!r}, whose program takes one")
