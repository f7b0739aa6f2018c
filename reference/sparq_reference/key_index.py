# SPDX-License-Identifier: Apache-2.0
"""The key index of 8, 4 or 2 bits, from which SparQ scores positions where index_bits is not 16.

Rule E9 of docs/exactness.md. Keys are quantised by component, in blocks of 64 consecutive positions counted
from 0, as soon as a block is full; the positions behind the last full block are scored in float16. So what is
stored depends on the keys and on the length, on nothing else. Approximate scores of a block are sums of
integers, exact in any order.

Both twins share the first half (`quantise`), which makes the stored numbers. The second (`block_scores`) is
the arithmetic of the exact twin.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparq_reference.numerics import BLOCK, to_half, widen

#: largest |coefficient| of a query component, by index_bits, where the rank allows it
COEFFICIENT_LIMIT = {8: 2047, 4: 127, 2: 127}

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
# Adding and subtracting 1.5 * 2**23 rounds a number below 2**22 to an integer, nearest, ties to even.
_ROUND = np.float32(float.fromhex("0x1.8p+23"))


class KeyIndex(NamedTuple):
    """Full blocks of some components: key = low + step * code, about."""

    low: np.ndarray  #: (n_components, n_blocks) float16
    step: np.ndarray  #: (n_components, n_blocks) float16, 0 or more
    code: np.ndarray  #: (n_components, n_blocks, 64) uint8, at most 2**index_bits - 1


def quantise(columns: np.ndarray, index_bits: int) -> KeyIndex:
    """Quantise components of the keys of one KV head: columns (n_components, n_positions) float16, of which
    n_positions is a multiple of 64."""
    most = np.float32(2**index_bits - 1)
    blocks = widen(columns).reshape(columns.shape[0], -1, BLOCK)
    low, high = blocks.min(axis=-1), blocks.max(axis=-1)
    step = to_half((high - low) * (_ONE / most))
    flat = step == 0
    inverse = _ONE / np.where(flat, _ONE, widen(step))
    code = round_to_integer((blocks - low[..., None]) * inverse[..., None])
    code = np.where(flat[..., None], _ZERO, np.minimum(code, most))
    return KeyIndex(low.astype(np.float16), step, code.astype(np.uint8))


def round_to_integer(x: np.ndarray) -> np.ndarray:
    """The nearest integer, ties to even, of float32 numbers |x| < 2**22."""
    rounded: np.ndarray = (widen(x) + _ROUND) - _ROUND
    return rounded


def coefficient_limit(index_bits: int, rank: int) -> int:
    """Largest |coefficient|: a sum of `rank` products with codes stays below 2**24, exact in float32."""
    most: int = 2**index_bits - 1
    return min(COEFFICIENT_LIMIT[index_bits], (2**24 - 1) // (most * rank))


def block_scores(query: np.ndarray, index: KeyIndex, index_bits: int) -> np.ndarray:
    """Approximate scores of full blocks, before the temperature.

    Args:
        query: (n_heads, n_components) float32, the selected components, ascending.
        index: these components of the keys.

    Returns:
        (n_heads, n_blocks * 64) float32.
    """
    limit = np.float32(coefficient_limit(index_bits, query.shape[1]))
    weight = query[:, :, None] * widen(index.step)[None]  # exact
    largest = np.abs(weight).max(axis=1)  # (n_heads, n_blocks)
    nothing = largest == 0
    inverse = limit / np.where(nothing, _ONE, largest)
    coefficient = round_to_integer(weight * inverse[:, None]).astype(np.int64)
    coefficient[np.broadcast_to(nothing[:, None], coefficient.shape)] = 0
    unit = np.where(nothing, _ZERO, largest * (_ONE / limit))
    offset = np.zeros(largest.shape, np.float32)
    total = np.zeros((*largest.shape, BLOCK), np.int64)
    for j in range(query.shape[1]):
        offset += query[:, j, None] * widen(index.low[j])
        total += coefficient[:, j, :, None] * index.code[j].astype(np.int64)
    scores = unit[..., None] * total.astype(np.float32) + offset[..., None]
    return scores.reshape(query.shape[0], -1)
