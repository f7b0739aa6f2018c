# SPDX-License-Identifier: Apache-2.0
"""fp32 arithmetic of the exactness contract: sums in a fixed order, exp, sqrt, rounding.

Each function takes and returns float32 (float16 is accepted and widened, which is exact), works on arrays of
any shape, and uses only `+ - * /`, comparisons and integer operations on bit patterns. NumPy evaluates one
operation at a time, so nothing is contracted and every operator is one rounding. Rules E1 to E5 are those of
docs/exactness.md.

Constants are `np.float32` objects, never Python floats: NumPy 1.x evaluates `np.float32(x) * 0.5` in float64.
"""

from __future__ import annotations

import math

import numpy as np

#: lanes of a lane sum: element `c` of a list goes to lane `c % LANES` (E3)
LANES = 8
#: positions of a block, absolute or in a list of selected positions (E3)
BLOCK = 64
#: positions that are widened to fp32 at a time; a multiple of BLOCK; bounds the memory, changes no bit
CHUNK = 32 * BLOCK
#: largest finite fp16, where outputs saturate (E1)
HALF_MAX = np.float32(65504.0)
#: `flush` cuts magnitudes below this to +0 (E2)
FLUSH_BELOW = np.float32(2.0**-48)
#: `softmax_weight` is 0 below this (E5)
CUTOFF = np.float32(-54.0)

_ZERO = np.float32(0.0)
_HALF = np.float32(0.5)
_ONE = np.float32(1.0)

# exp: adding _EXP_SHIFT (1.5 * 2**23) leaves round(x / ln 2) in the low bits; ln 2 = _LN2_HIGH + _LN2_LOW,
# the high part short enough for `n * _LN2_HIGH` to be exact
_EXP_SHIFT = np.float32(float.fromhex("0x1.8p+23"))
_EXP_SHIFT_BITS = np.int32(0x4B400000)
_EXP_TINY = np.float32(-(2.0**-25))
_INV_LN2 = np.float32(float.fromhex("0x1.715476p+0"))
_LN2_HIGH = np.float32(float.fromhex("0x1.63p-1"))
_LN2_LOW = np.float32(float.fromhex("-0x1.bd0106p-13"))
_EXP_P5 = np.float32(float.fromhex("0x1.6d4352p-10"))
_EXP_P4 = np.float32(float.fromhex("0x1.120b96p-7"))
_EXP_P3 = np.float32(float.fromhex("0x1.5554e8p-5"))
_EXP_P2 = np.float32(float.fromhex("0x1.5554dcp-3"))
_EXP_P1 = np.float32(0.5)

_SQRT_GUESS = np.uint32(0x1FBB4F2E)


def widen(x: np.ndarray) -> np.ndarray:
    """float16 or float32 of any shape -> float32, exactly."""
    x = np.asarray(x)
    if x.dtype not in (np.float16, np.float32):
        raise ValueError(f"numerics: input must be float16 or float32, got {x.dtype}")
    return x.astype(np.float32, copy=False)


def to_half(x: np.ndarray) -> np.ndarray:
    """Clamp to [-65504, 65504], then round to float16, nearest, ties to even (E1). Overflow saturates."""
    x = np.minimum(np.maximum(widen(x), -HALF_MAX), HALF_MAX)
    with np.errstate(under="ignore"):  # fp16 denormals are ordinary outputs
        return x.astype(np.float16)


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """float32 numbers as bfloat16 has them: to nearest, ties to even; a NaN stays one."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    rounded = (rounded & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), rounded)


def flush(x: np.ndarray) -> np.ndarray:
    """`x` where |x| >= 2**-48, else +0 (E2)."""
    x = widen(x)
    return np.where(np.abs(x) >= FLUSH_BELOW, x, _ZERO)


def scale(head_dim: int) -> np.float32:
    """1 / sqrt(head_dim), computed in double and rounded once to fp32 (E4)."""
    return np.float32(1.0 / math.sqrt(head_dim))


def sqrt(t: np.ndarray) -> np.ndarray:
    """Square root of t in [2**-60, 2**60]: a guess by bits, three Heron steps (E4); within 0.76 ulp."""
    t = widen(t)
    x: np.ndarray = ((t.view(np.uint32) >> np.uint32(1)) + _SQRT_GUESS).view(np.float32)
    for _ in range(3):
        x = _HALF * (x + t / x)
    return x


def exp(x: np.ndarray) -> np.ndarray:
    """e**x for x in [-87, 0] (E5). Error at most 1.05 ulp; monotone; exactly 1 at 0; never denormal."""
    x = widen(x)
    x = np.where(x > _EXP_TINY, _ZERO, x)  # so that r * r below cannot underflow
    t = x * _INV_LN2 + _EXP_SHIFT
    n = t - _EXP_SHIFT
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = _EXP_P5
    p = p * r + _EXP_P4
    p = p * r + _EXP_P3
    p = p * r + _EXP_P2
    p = p * r + _EXP_P1
    y = _ONE + (r + (r * r) * p)
    exponent = (t.view(np.int32) - _EXP_SHIFT_BITS) * np.int32(1 << 23)
    result: np.ndarray = (y.view(np.int32) + exponent).view(np.float32)
    return result


def softmax_weight(x: np.ndarray) -> np.ndarray:
    """0 where x < -54, else exp(x) (E5). `x` is a score minus the largest score: in [-inf, 0]."""
    x = widen(x)
    return np.where(x < CUTOFF, _ZERO, exp(np.maximum(x, CUTOFF)))


def fold_lanes(lanes: np.ndarray) -> np.ndarray:
    """(..., 8) -> (...): lanes (0+4, 1+5, 2+6, 3+7), then (0+2, 1+3) of those, then the two (E3). Of 16 lanes
    (E14) j and j + 8 come before."""
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def lane_sums(x: np.ndarray, n_lanes: int = LANES) -> np.ndarray:
    """(..., n) -> (..., n_lanes): a lane adds every n_lanes-th number, from +0 and ascending."""
    lanes = np.zeros((*x.shape[:-1], n_lanes), np.float32)
    for start in range(0, x.shape[-1], n_lanes):
        part = x[..., start : start + n_lanes]
        lanes[..., : part.shape[-1]] += part
    return lanes


def lane_sum(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Sum along `axis` in eight lanes, each from +0 and ascending, folded at the end (E3)."""
    return fold_lanes(lane_sums(np.moveaxis(widen(x), axis, -1)))


def dot(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Lane sum of x * y along the last axis; the other axes broadcast (E3)."""
    x, y = widen(x), widen(y)
    shape = np.broadcast(x[..., 0], y[..., 0]).shape
    lanes = np.zeros((*shape, LANES), np.float32)
    for start in range(0, x.shape[-1], LANES):
        part = x[..., start : start + LANES] * y[..., start : start + LANES]
        lanes[..., : part.shape[-1]] += part
    return fold_lanes(lanes)


def _split_blocks(x: np.ndarray, axis: int) -> np.ndarray:
    """Split `axis` (n) into (ceil(n / 64), 64), the last block filled with +0, which no sum of E3 notices."""
    axis %= x.ndim
    n = x.shape[axis]
    missing = -n % BLOCK
    if missing:
        filling = np.zeros((*x.shape[:axis], missing, *x.shape[axis + 1 :]), x.dtype)
        x = np.concatenate([x, filling], axis=axis)
    return x.reshape((*x.shape[:axis], (n + missing) // BLOCK, BLOCK, *x.shape[axis + 1 :]))


def block_sums(weights: np.ndarray) -> np.ndarray:
    """Partial sums of weights: (..., n) -> (..., ceil(n / 64)), each the lane sum of one block (E3)."""
    return lane_sum(_split_blocks(widen(weights), -1))


def fold_blocks(partial: np.ndarray, axis: int = -1) -> np.ndarray:
    """Add partial sums ascending along `axis`, from +0: a left fold (E3)."""
    partial = np.moveaxis(widen(partial), axis, 0)
    total = np.zeros(partial.shape[1:], np.float32)
    for part in partial:
        total = total + part
    return total


def weighted_sum(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Weighted sum of rows, (m, n) weights and (n, d) values -> (m, d) (E3).

    Per component: within a block from +0, ascending, each product rounded; then the blocks ascending from +0.
    """
    total = np.zeros((weights.shape[0], values.shape[1]), np.float32)
    for start in range(0, values.shape[0], CHUNK):
        v = _split_blocks(widen(values[start : start + CHUNK]), 0)  # (blocks, 64, d)
        w = _split_blocks(widen(weights[:, start : start + CHUNK]), 1)  # (m, blocks, 64)
        partial = np.zeros((w.shape[0], v.shape[0], v.shape[2]), np.float32)
        for j in range(BLOCK):
            partial += w[:, :, j, None] * v[None, :, j, :]
        for block in range(partial.shape[1]):
            total = total + partial[:, block]
    return total


def group_sum(x: np.ndarray, n_kv_heads: int) -> np.ndarray:
    """Group sums, from +0, ascending: (batch, n_heads, n) -> (batch, n_kv_heads, n) (E3)."""
    x = widen(x)
    grouped = x.reshape(x.shape[0], n_kv_heads, -1, x.shape[2])
    total = np.zeros((x.shape[0], n_kv_heads, x.shape[2]), np.float32)
    for member in range(grouped.shape[2]):
        total = total + grouped[:, :, member]
    return total
