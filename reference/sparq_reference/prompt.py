# SPDX-License-Identifier: Apache-2.0
"""Causal dense attention of the tokens of a prompt: the exact twin and the float64 twin.

The exact twin is rule E14 of docs/exactness.md: products of integers, which are exact in any order, between a
softmax in float32. A row's result depends on its own query and on the keys and values up to its position, and
on nothing else: not on how a prompt is cut into pieces, on threads, batch mates or instruction sets.
"""

from __future__ import annotations

import numpy as np

from sparq_reference import checks, numerics

OP = "prompt_attention"
#: largest integer of a query and of a weight, and of a key and a value: 8191 * 4095 * 64 < 2**31
QUERY_LIMIT, LIMIT = np.float32(8191), np.float32(4095)
#: components whose products are summed as integers; positions of a block
CHUNK = 64
#: a block whose largest weight times value step is below this adds nothing: no denormal appears
LEAST = np.float32(2.0**-100)

_SHIFT = np.float32(1.5 * 2.0**23)
_ZERO = np.float32(0.0)


def round_to_integers(x: np.ndarray, limit: np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Integers of at most `limit`, and the step between them, for each row of the last axis.

    Args:
        x: (..., n) float32.
        limit: the integer of the row's largest magnitude.

    Returns:
        (..., n) float64 integers, and (...) float32 steps; zeros where no magnitude reaches 2**-48.
    """
    largest = np.abs(x).max(axis=-1)
    counts = largest >= numerics.FLUSH_BELOW
    safe = np.where(counts, largest, np.float32(1.0))
    integers = x * (limit / safe)[..., None] + _SHIFT - _SHIFT
    zero = np.where(counts[..., None], integers, _ZERO)
    return zero.astype(np.float64), np.where(counts, safe / limit, _ZERO)


def _dots(query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """(n, d) and (m, d) integers -> (n, m) float32: chunks, summed exactly, are rounded and added."""
    total = np.zeros((len(query), len(key)), np.float32)
    for start in range(0, query.shape[1], CHUNK):
        part = (query[:, start : start + CHUNK] @ key[:, start : start + CHUNK].T).astype(np.float32)
        total = part if start == 0 else total + part
    return total


def _attend(query: np.ndarray, key: np.ndarray, value: np.ndarray, scale: np.float32) -> np.ndarray:
    """One head: query (n, d), key and value (m, d) -> (n, d) float32."""
    n, m = len(query), len(key)
    position = np.arange(m - n, m)
    queries, query_steps = round_to_integers(query, QUERY_LIMIT)
    keys, key_steps = round_to_integers(key, LIMIT)
    values, value_steps = round_to_integers(value, LIMIT)
    query_steps = query_steps * scale
    maximum = np.full(n, -np.inf, np.float32)
    weight_sum = np.zeros(n, np.float32)
    total = np.zeros((n, value.shape[1]), np.float32)
    for begin in range(0, m, numerics.BLOCK):
        block = slice(begin, min(begin + numerics.BLOCK, m))
        scores = _dots(queries, keys[block]) * key_steps[block] * query_steps[:, None]
        seen = np.arange(block.start, block.stop) <= position[:, None]
        scores = np.where(seen, scores, np.float32(-np.inf))
        largest = scores.max(axis=1)
        rises = largest > maximum
        raised = np.where(rises, largest, maximum)
        with np.errstate(invalid="ignore"):
            factor = np.where(rises, numerics.softmax_weight(maximum - raised), np.float32(1.0))
        maximum, weight_sum, total = raised, weight_sum * factor, total * factor[:, None]
        reached = maximum > -np.inf  # rows that see a position of this block or of one before
        base = np.where(reached, maximum, _ZERO)
        weights = numerics.softmax_weight(scores - base[:, None])
        weight_sum = weight_sum + numerics.lane_sum(weights)
        weights = weights * value_steps[block]
        most = weights.max(axis=1)
        counts = most >= LEAST
        safe = np.where(counts, most, np.float32(1.0))
        per_unit = np.where(counts, QUERY_LIMIT / safe, _ZERO)
        integers = (weights * per_unit[:, None] + _SHIFT - _SHIFT).astype(np.float64)
        step = np.where(counts, safe / QUERY_LIMIT, _ZERO)
        total = total + (integers @ values[block]).astype(np.float32) * step[:, None]
    return numerics.flush(total) / weight_sum[:, None]


def prompt_attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, *, scale: float | None = None
) -> np.ndarray:
    """Causal attention of the last n tokens (E14), bit for bit.

    Args:
        query: (batch, n_heads, n, head_dim) float32 or float16; the queries of the last n positions.
        key, value: (batch, n_kv_heads, seq_len, head_dim) of the same dtype, seq_len >= n.
        scale: factor of the scores; None: 1 / sqrt(head_dim).

    Returns:
        (batch, n, n_heads, head_dim) of the same dtype.

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    check(query, key, value)
    factor = numerics.scale(query.shape[-1]) if scale is None else np.float32(scale)
    group = query.shape[1] // key.shape[1]
    output = np.empty((query.shape[0], query.shape[2], query.shape[1], query.shape[3]), np.float32)
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            q, k, v = (numerics.widen(x) for x in (query[b, h], key[b, h // group], value[b, h // group]))
            output[b, :, h] = _attend(q, k, v, factor)
    return numerics.to_half(output) if query.dtype == np.float16 else output


def ideal_prompt_attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, *, scale: float | None = None
) -> np.ndarray:
    """The same in float64, softmax(q k^T * scale) v over the positions up to each row's own; float64 out."""
    check(query, key, value)
    factor = 1.0 / np.sqrt(query.shape[-1]) if scale is None else scale
    group = query.shape[1] // key.shape[1]
    n, m = query.shape[2], key.shape[2]
    seen = np.arange(m) <= np.arange(m - n, m)[:, None]
    keys, values = (np.repeat(x.astype(np.float64), group, axis=1) for x in (key, value))
    scores = np.where(seen, query.astype(np.float64) @ keys.swapaxes(2, 3) * factor, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    output: np.ndarray = (weights / weights.sum(axis=-1, keepdims=True)) @ values
    return output.swapaxes(1, 2)


def check(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> None:
    """Refuse arrays that do not fit one another.

    Raises:
        ValueError: names the argument, the rule and the value.
    """
    if query.ndim != 4:
        checks.fail(OP, "query", "have shape (batch, n_heads, n, head_dim)", query.shape)
    if query.dtype not in (np.float32, np.float16):
        checks.fail(OP, "query", "be float32 or float16", query.dtype)
    batch, n_heads, n, head_dim = query.shape
    for name, x in (("key", key), ("value", value)):
        if x.dtype != query.dtype:
            checks.fail(OP, name, f"be {query.dtype} as the query", x.dtype)
        if x.ndim != 4 or x.shape[0] != batch or x.shape[3] != head_dim or x.shape != key.shape:
            checks.fail(
                OP, name, f"have shape (batch={batch}, n_kv_heads, seq_len, head_dim={head_dim})", x.shape
            )
    if key.shape[1] < 1 or n_heads % key.shape[1]:
        checks.fail(OP, "query", f"have a multiple of n_kv_heads={key.shape[1]} heads", n_heads)
    if head_dim % 8 or not 8 <= head_dim <= 256:
        checks.fail(OP, "head_dim", "be a multiple of 8 of at most 256", head_dim)
    if not 1 <= n <= key.shape[2]:
        checks.fail(OP, "query", f"have 1 to seq_len={key.shape[2]} tokens", n)
