# SPDX-License-Identifier: Apache-2.0
"""Several tokens in one step: as one after another, to the bit."""

from __future__ import annotations

import numpy as np

from sparq_ipu.attention import attention, check_call
from sparq_ipu.cache import KVCache
from sparq_ipu.kernels import Settings
from sparq_reference import checks
from sparq_reference.settings import SparqSettings, WindowSettings, op_of

#: most tokens of one step
MAX_TOKENS = 32
#: devices that take more than one: the program of an IPU is compiled for one token a call
DEVICES = ("cpu", "reference")


def append_and_attend(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    cache: KVCache,
    settings: Settings = None,
) -> np.ndarray:
    """Append tokens to every batch element, and attend from each of them to all positions up to its own.

    The result and the cache are, bit for bit, those of `cache.append` and `attention` for one token after
    another: with settings, each token selects positions for itself.

    Args:
        query: (batch, n_heads, n_tokens, head_dim) float16, n_tokens in [1, 32].
        key, value: (batch, n_kv_heads, n_tokens, head_dim) float16.
        cache: on "cpu" or "reference" if there is more than one token.
        settings: `sparq_ipu.SparqSettings` or `sparq_ipu.WindowSettings`; None: dense attention, which reads
            the cache once for all tokens.

    Returns:
        (batch, n_heads, n_tokens, head_dim) float16.

    Raises:
        ValueError: as `KVCache.append` and the attention functions; a number of tokens out of range; several
            tokens on another device. The cache is then unchanged.
    """
    if not isinstance(settings, (SparqSettings, WindowSettings, type(None))):
        rule = "be sparq_ipu.SparqSettings, sparq_ipu.WindowSettings or None"
        checks.fail("append_and_attend", "settings", rule, type(settings).__name__)
    op = op_of(settings)
    n_tokens = _check(op, query, key, value, cache, settings)
    if n_tokens == 1:
        cache.append(key, value)
        return attention(query[:, :, 0], cache, settings)[:, :, None]
    backend = cache.one_layer(op)
    everything = np.full(cache.batch, 1, np.int64)
    if settings is None:
        backend.append(key, value, n_tokens * everything)
        return backend.attention_of_tokens(query)
    output = np.empty_like(query)
    for index in range(n_tokens):
        token = slice(index, index + 1)
        backend.append(key[:, :, token], value[:, :, token], everything)
        output[:, :, index] = backend.attention(np.ascontiguousarray(query[:, :, index]), settings)
    return output


def _check(
    op: str,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    cache: KVCache,
    settings: Settings,
) -> int:
    """The number of tokens; raises as `append_and_attend`."""
    if not isinstance(query, np.ndarray) or query.ndim != 4:
        got = getattr(query, "shape", type(query).__name__)
        checks.fail(op, "query", "have shape (batch, n_heads, n_tokens, head_dim)", got)
    n_tokens = checks.check_integer(op, "n_tokens", query.shape[2], 1, MAX_TOKENS)
    for index in range(n_tokens):
        check_call(op, query[:, :, index], cache, n_new=1)
    if settings is not None:
        settings.check(op, cache.head_dim, cache.index_components)
        settings.check_heads(op, query.shape[1])
    cache.one_layer(op).check_settings(op, settings)
    checks.check_append(op, key, value, cache.spec, cache.lengths, check_finite=cache.check_finite)
    if key.shape[2] != n_tokens:
        checks.fail(op, "key", f"have the n_tokens={n_tokens} of query", key.shape)
    if n_tokens > 1 and cache.device not in DEVICES:
        rule = f"be {' or '.join(map(repr, DEVICES))} for {n_tokens} tokens a call"
        checks.fail(op, "device", rule, f"{cache.device!r}, whose program takes one")
    return n_tokens
