# SPDX-License-Identifier: Apache-2.0
"""Causal dense attention of the tokens of a prompt: the exact twin and the float64 twin.

The exact twin is rules E14 and E16 of docs/exactness.md. Its products are those of integers, which are exact
in any order, or of float32, summed in a fixed order. A row's result depends on its own query and on the keys
and values that it sees, and on nothing else: not on how a prompt is cut into pieces, on threads, batch mates
or instruction sets.
"""

from __future__ import annotations

from typing import Iterator, Sequence

import numpy as np

from sparq_reference import checks, numerics

OP = "prompt_attention"
#: largest integer of a query and of a weight, and of a key; those of values are at most 4096:
#: 8191 * 4096 * 64 < 2**31
QUERY_LIMIT, LIMIT = np.float32(8191), np.float32(4095)
#: components whose products are summed by themselves
CHUNK = 64
#: scores are logarithms to base 2; a weight whose logarithm is below LEAST counts as 0
LOG2_E, HALF_LN2, LEAST = np.float32(np.log2(np.e)), np.float32(np.log(2.0) / 2), np.float32(-100)
#: lanes of a sum of weights
LANES = 16
#: half of the variance of the scores of a block from which on their deviation counts, for a high and a low
#: estimate of its weight; most of its weights that a row leaves out (E16)
HIGH, LOW, MOST_LEFT_OUT = np.float32(16), np.float32(2), np.float32(0.125)
#: coefficients of polynomials, from that of the highest power: 2**x with a relative error of at most 1e-7,
#: and 8191 * 2**x with one of 1.1e-4
POWER = np.array(
    [0.0001539393, 0.0013402902, 0.009618337, 0.055503223, 0.24022648, 0.6931472, 1.0], np.float32
)
INTEGER_POWER = np.array([450.5783, 1983.9504, 5678.68, 8191.0], np.float32)

_SHIFT = np.float32(1.5 * 2.0**23)
_ZERO = np.float32(0.0)


def round_to_integers(x: np.ndarray, limit: np.float32) -> tuple[np.ndarray, np.ndarray]:
    """(..., n) float32 -> (..., n) float64 integers, of which `limit` is the row's largest magnitude, and
    (...) float32 steps between them; zeros where no magnitude reaches 2**-48."""
    largest = np.abs(x).max(axis=-1)
    counts = largest >= numerics.FLUSH_BELOW
    safe = np.where(counts, largest, np.float32(1.0))
    integers = x * (limit / safe)[..., None] + _SHIFT - _SHIFT
    zero = np.where(counts[..., None], integers, _ZERO)
    return zero.astype(np.float64), np.where(counts, safe / limit, _ZERO)


def round_values(value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n, d) float32 -> (n, d) float64 integers of at most 4096, and (n,) int32 logarithms of the steps
    between them; zeros, and -60, where no magnitude reaches 2**-48."""
    largest = np.abs(value).max(axis=-1)
    counts = largest >= numerics.FLUSH_BELOW
    logs = np.where(counts, np.frexp(largest)[1] - 12, -60).astype(np.int32)
    integers = np.ldexp(value, -logs[:, None]) + _SHIFT - _SHIFT
    return np.where(counts[:, None], integers, _ZERO).astype(np.float64), logs


def powers(x: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """(...) float32 of at most 0 -> (...) float32: 2**x times the last coefficient, 0 below LEAST."""
    clamped = np.where(x < LEAST, _ZERO, x)
    whole = clamped + _SHIFT - _SHIFT
    rest = clamped - whole
    power = coefficients[0]
    for coefficient in coefficients[1:]:
        power = power * rest + coefficient
    weights: np.ndarray = np.where(x < LEAST, _ZERO, np.ldexp(power, whole.astype(np.int32)))
    return weights


def _products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(n, k) and (k, m) -> (n, m) float32: of float64 integers the exact sums, rounded once; of float32
    ascending sums, every operation rounded."""
    if a.dtype == np.float64:
        exact: np.ndarray = (a @ b).astype(np.float32)
        return exact
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for column, row in zip(a.T, b):
        total = total + column[:, None] * row
    return total


def _dots(query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """(n, d) and (m, d) -> (n, m) float32: sums of chunks are added."""
    chunks = (slice(start, start + CHUNK) for start in range(0, query.shape[1], CHUNK))
    total, *rest = (_products(query[:, chunk], key[:, chunk].T) for chunk in chunks)
    for part in rest:
        total = total + part
    return total


def _attend(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    scale: np.float32,
    integers: bool,
    window: int,
    share: float,
) -> np.ndarray:
    """One head: query (n, d), key and value (m, d) -> (n, d) float32. `scale` makes logarithms to base 2."""
    n, m = len(query), len(key)
    position = np.arange(m - n, m)
    coefficients = INTEGER_POWER if integers else POWER
    query_steps = np.broadcast_to(scale, n)
    high, low = _estimates(query, key, scale, integers) if share else (np.zeros((n, 0), np.float32),) * 2
    if integers:
        query, query_steps = round_to_integers(query, QUERY_LIMIT)
        query_steps = query_steps * scale
        key, key_steps = round_to_integers(key, LIMIT)
        value, value_logs = round_values(value)
    maximum = np.full(n, -np.inf, np.float32)
    weight_sums = np.zeros((n, LANES), np.float32)
    total = np.zeros((n, value.shape[1]), np.float32)
    left_out: np.ndarray | None = None
    for begin, chosen in _order(position, share):
        block = slice(begin, min(begin + numerics.BLOCK, m))
        scores = _dots(query, key[block])
        if integers:
            scores = scores * key_steps[block]
        at = np.arange(block.start, block.stop)
        seen = _seen(position, at, window) & chosen[:, None]
        if share and (chosen & is_far(position, begin)).any():
            if left_out is None:  # blocks that are near are done
                near = numerics.fold_lanes(weight_sums) * np.float32(1 / 8191 if integers else 1)
                left_out = _left_out(high, low, position, maximum, near, share)
            seen &= ~(chosen & left_out[:, begin // numerics.BLOCK])[:, None]
        rows = seen.any(axis=1)  # the others take no step
        scores = scores * query_steps[:, None]
        if integers:
            scores = scores + value_logs[block].astype(np.float32)
        scores = np.where(seen, scores, np.float32(-np.inf))[rows]
        largest = scores.max(axis=1)
        raised = np.maximum(maximum[rows], largest)
        factor = powers(maximum[rows] - raised, POWER)
        gain = powers(largest - raised, POWER)
        weights = powers(scores - largest[:, None], coefficients)
        maximum[rows] = raised
        added = np.ldexp(weights, -value_logs[block]) if integers else weights
        sums = weight_sums[rows] * factor[:, None] + numerics.lane_sums(added, LANES) * gain[:, None]
        weight_sums[rows] = sums
        if integers:
            weights = (weights + _SHIFT - _SHIFT).astype(np.float64)
        products = _products(weights, value[block])
        total[rows] = total[rows] * factor[:, None] + products * gain[:, None]
    output: np.ndarray = numerics.flush(total / numerics.fold_lanes(weight_sums)[:, None])
    return output


def _estimates(
    query: np.ndarray, key: np.ndarray, scale: np.float32, integers: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(n, d) and (m, d) -> (n, blocks) twice: the logarithm of the mean weight of a block, estimated high and
    low. That is the mean of the scores and half of their variance, as if components were independent, where
    the variance is small; or the score of the key that stands apart, where it alone has more. What a block
    that is not whole gets is never used."""
    blocks = np.pad(key, ((0, -len(key) % numerics.BLOCK), (0, 0))).reshape(-1, numerics.BLOCK, key.shape[1])
    mean = _mean(blocks)
    difference = blocks - mean[:, None]
    apart = blocks[np.arange(len(blocks)), numerics.dot(blocks, mean[:, None]).argmin(axis=1)]
    scaled = query * scale

    def scores(of_row: np.ndarray, of_block: np.ndarray, factor: np.float32) -> np.ndarray:
        if not integers:
            return _dots(of_row, of_block) * factor
        of_row, row_steps = round_to_integers(of_row, QUERY_LIMIT)
        of_block, block_steps = round_to_integers(of_block, LIMIT)
        products: np.ndarray = _dots(of_row, of_block) * block_steps * (row_steps * factor)[:, None]
        return products

    half = scores(scaled * scaled * HALF_LN2, _mean(difference * difference), np.float32(1.0))
    of_mean = scores(query, mean, scale)
    alone = scores(query, apart, scale) - np.float32(np.log2(numerics.BLOCK))

    def estimate(start: np.float32) -> np.ndarray:
        spread = np.where(half < start, half, np.sqrt(half * (4 * start)) - start)
        of_block: np.ndarray = np.maximum(of_mean + spread, alone)
        return of_block

    return estimate(HIGH), estimate(LOW)


def _mean(blocks: np.ndarray) -> np.ndarray:
    """(n, 64, d) -> (n, d): added ascending."""
    total = np.zeros((len(blocks), blocks.shape[2]), np.float32)
    for i in range(numerics.BLOCK):
        total = total + blocks[:, i]
    return total * np.float32(1 / numerics.BLOCK)


def _left_out(
    high: np.ndarray,
    low: np.ndarray,
    position: np.ndarray,
    maximum: np.ndarray,
    near: np.ndarray,
    share: float,
) -> np.ndarray:
    """(n, blocks) high and low estimates, and of each row (n,) its position, the largest score and the sum of
    weights of its near blocks -> (n, blocks): whether a row leaves out a block."""
    far = np.stack([is_far(position, numerics.BLOCK * b) for b in range(high.shape[1])], axis=1)
    top = np.maximum(maximum, np.where(far, high, -np.inf).max(axis=1))

    def weighed(estimates: np.ndarray) -> np.ndarray:
        of_far: np.ndarray = np.where(
            far, powers(np.where(far, estimates - top[:, None], LEAST), POWER), _ZERO
        )
        return of_far

    def summed(weights: np.ndarray) -> np.ndarray:
        return numerics.fold_lanes(numerics.lane_sums(weights, LANES)) * np.float32(numerics.BLOCK)

    weights = weighed(high)
    total = summed(weighed(low)) + near * powers(maximum - top, POWER)
    limit = total * np.float32(share / numerics.BLOCK)
    while True:
        left_out: np.ndarray = far & (weights < limit[:, None])
        too_much = summed(np.where(left_out, weights, _ZERO)) > total * MOST_LEFT_OUT
        if not too_much.any():
            return left_out
        limit = np.where(too_much, limit * np.float32(0.5), limit)


def is_far(position: np.ndarray, begin: int) -> np.ndarray:
    """Rows for which the block that begins there is neither the first nor one of their last two."""
    far: np.ndarray = (begin > 0) & (begin // numerics.BLOCK < position // numerics.BLOCK - 1)
    return far


def _order(position: np.ndarray, share: float) -> Iterator[tuple[int, np.ndarray]]:
    """(begin of a block, the rows that go over it now): with a share, blocks that are far come last."""
    every = np.arange(0, position[-1] + 1, numerics.BLOCK).tolist()
    for last in (False, True)[: 2 if share else 1]:
        for begin in every:
            rows = is_far(position, begin) == last if share else np.ones(len(position), bool)
            if rows.any():
                yield begin, rows


def _seen(row: np.ndarray, position: np.ndarray, window: int) -> np.ndarray:
    """(n, m): whether a row at one position sees another position."""
    behind: np.ndarray = row[:, None] - position
    return (behind >= 0) & (behind < (window or np.inf))


def prompt_attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    scale: float | None = None,
    integers: bool = False,
    window: int = 0,
    blocks: float = 0.0,
    blocks_from: int = 0,
    starts: Sequence[int] | None = None,
) -> np.ndarray:
    """Causal attention of the last n tokens (E14), bit for bit.

    Args:
        query: (batch, n_heads, n, head_dim) float32 or float16; the queries of the last n positions.
        key, value: (batch, n_kv_heads, seq_len, head_dim) of the same dtype, seq_len >= n; magnitudes up to
            65504. head_dim is a multiple of 8 of at most 256.
        scale: factor of the scores; None: 1 / sqrt(head_dim).
        integers: round queries to integers of 14 bits, keys and values to 13: as accurate as bfloat16; else
            compute in float32.
        window: most recent positions that a token sees, itself included; 0: all.
        blocks: a row leaves out a block of 64 positions that is estimated to have less than this share of
            the sum of its weights (E16), e.g. 0.0015. 0: no block is left out.
        blocks_from: rows at positions below this one leave out no block.
        starts: (batch,) tokens of padding before the text of each batch element; None: none.

    Returns:
        (batch, n, n_heads, head_dim) of the same dtype; 0 where padding is.
    """
    factor = check(query, key, value, scale, window, blocks, blocks_from, starts)
    output = np.zeros((query.shape[0], query.shape[2], query.shape[1], query.shape[3]), np.float32)
    for (b, h, n), q, k, v in _heads(query, key, value, starts):
        q, k, v = (numerics.widen(x) for x in (q, k, v))
        first = len(k) - n
        cut = min(max(blocks_from - first, 0), n)
        for begin, end, share in ((0, cut, 0.0), (cut, n, blocks)):
            if begin < end:
                seen = slice(first + end)
                rows = _attend(q[begin:end], k[seen], v[seen], factor * LOG2_E, integers, window, share)
                output[b, -n:, h][begin:end] = rows
    return numerics.to_half(output) if query.dtype == np.float16 else output


def ideal_prompt_attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    scale: float | None = None,
    window: int = 0,
    starts: Sequence[int] | None = None,
) -> np.ndarray:
    """The same in float64, softmax(q k^T * scale) v over the positions that each row sees; float64 out."""
    check(query, key, value, scale, window, 0.0, 0, starts)
    factor = 1.0 / np.sqrt(query.shape[-1]) if scale is None else scale
    output = np.zeros((query.shape[0], query.shape[2], query.shape[1], query.shape[3]))
    for (b, h, n), q, k, v in _heads(query, key, value, starts):
        position = np.arange(len(k))
        scores = q.astype(np.float64) @ k.astype(np.float64).T * factor
        scores = np.where(_seen(position[-n:], position, window), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        output[b, -n:, h] = weights / weights.sum(axis=-1, keepdims=True) @ v.astype(np.float64)
    return output


def _heads(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, starts: Sequence[int] | None
) -> Iterator[tuple[tuple[int, int, int], np.ndarray, np.ndarray, np.ndarray]]:
    """((batch, head, rows), query, key, value) of each head that has tokens, without padding."""
    group = query.shape[1] // key.shape[1]
    for b in range(query.shape[0]):
        start = 0 if starts is None else int(starts[b])
        n = min(query.shape[2], key.shape[2] - start)
        for h in range(query.shape[1] if n else 0):
            of_head = b, h // group, slice(start, None)
            yield (b, h, n), query[b, h, -n:], key[of_head], value[of_head]


def check_blocks(op: str, name: str, blocks: float) -> float:
    """A share of attention below which blocks are left out (E16): 0, or in [2**-30, 0.5]."""
    is_number = isinstance(blocks, (int, float, np.floating)) and not isinstance(blocks, bool)
    if not is_number or not (blocks == 0 or 2.0**-30 <= blocks <= 0.5):
        checks.fail(op, name, "be 0 or in [2**-30, 0.5]", blocks)
    return float(blocks)


def check(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    scale: float | None,
    window: int,
    blocks: float,
    blocks_from: int,
    starts: Sequence[int] | None,
) -> np.float32:
    """Refuse arguments of `prompt_attention` that do not fit one another; returns the scale."""
    if query.ndim != 4:
        checks.fail(OP, "query", "have shape (batch, n_heads, n, head_dim)", query.shape)
    if query.dtype not in (np.float32, np.float16):
        checks.fail(OP, "query", "be float32 or float16", query.dtype)
    batch, n_heads, n, head_dim = query.shape
    for name, x in (("key", key), ("value", value)):
        if x.dtype != query.dtype:
            checks.fail(OP, name, f"be {query.dtype} as the query", x.dtype)
        if x.ndim != 4 or x.shape[0] != batch or x.shape[3] != head_dim or x.shape != key.shape:
            rule = f"have shape (batch={batch}, n_kv_heads, seq_len, head_dim={head_dim})"
            checks.fail(OP, name, rule, x.shape)
    if key.shape[1] < 1 or n_heads % key.shape[1]:
        checks.fail(OP, "query", f"have a multiple of n_kv_heads={key.shape[1]} heads", n_heads)
    if head_dim % 8 or not 8 <= head_dim <= 256:
        checks.fail(OP, "head_dim", "be a multiple of 8 of at most 256", head_dim)
    if not 1 <= n <= key.shape[2]:
        checks.fail(OP, "query", f"have 1 to seq_len={key.shape[2]} tokens", n)
    checks.check_integer(OP, "window", window, 0, 2**31 - 1)
    checks.check_integer(OP, "blocks_from", blocks_from, 0, 2**31 - 1)
    if check_blocks(OP, "blocks", blocks) and window:
        checks.fail(OP, "window", "be 0 with blocks", window)
    if starts is not None:
        checks.check_integers(OP, "starts", starts, batch, 0, np.full(batch, key.shape[2]), "[0, {high}]")
    factor = numerics.scale(head_dim) if scale is None else np.float32(scale)
    if not (np.isfinite(factor) and factor > 0):
        checks.fail(OP, "scale", "be positive and finite", scale)
    return factor
