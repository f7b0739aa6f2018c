# SPDX-License-Identifier: Apache-2.0
"""Rows of keys and values in 8 bits, as a cache holds them where row_bits is 8.

Rule E10 of docs/exactness.md. A row is rounded when it is appended, by itself; then the cache is that of 16
bits which was given the rounded rows. Rounding twice is rounding once, so what was read from a cache can be
appended to another one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparq_reference.key_index import round_to_integer
from sparq_reference.numerics import to_bfloat16, to_half, widen

#: consecutive components that share a scale; of the last group there may be 8
GROUP = 16
#: largest |code|
CODE_LIMIT = 127
#: scales are in this range: below it, codes times scales would come near the smallest float16 numbers; above
#: it they would exceed the largest
SCALE_RANGE = np.float32(2.0**-20), np.float32(2.0**9)

_ONE = np.float32(1.0)
_LIMIT = np.float32(CODE_LIMIT)


class RowCodes(NamedTuple):
    """Rows x[..., head_dim] = code * scale, about; a scale for each group of components."""

    code: np.ndarray  #: (..., head_dim) int8, in [-127, 127]
    scale: np.ndarray  #: (..., n_groups) float32, bfloat16 numbers


def encode(rows: np.ndarray) -> RowCodes:
    """Codes of rows (..., head_dim) float16, finite; head_dim a multiple of 8."""
    x = widen(rows)
    head_dim = x.shape[-1]
    n_groups = -(-head_dim // GROUP)
    missing = n_groups * GROUP - head_dim
    x = np.concatenate([x, np.zeros((*x.shape[:-1], missing), np.float32)], axis=-1)
    x = x.reshape(*x.shape[:-1], n_groups, GROUP)
    scale = to_bfloat16(np.abs(x).max(axis=-1) * (_ONE / _LIMIT))
    scale = np.minimum(np.maximum(scale, SCALE_RANGE[0]), SCALE_RANGE[1])
    code = round_to_integer(x * (_ONE / scale)[..., None])
    code = np.minimum(np.maximum(code, -_LIMIT), _LIMIT).astype(np.int8)
    return RowCodes(code.reshape(*rows.shape[:-1], -1)[..., :head_dim], scale)


def decode(codes: RowCodes) -> np.ndarray:
    """(..., head_dim) float16: the rows that these codes stand for."""
    scale = np.repeat(codes.scale, GROUP, axis=-1)[..., : codes.code.shape[-1]]
    return to_half(codes.code.astype(np.float32) * scale)


def round_rows(rows: np.ndarray, row_bits: int) -> np.ndarray:
    """Rows (..., head_dim) float16 as a cache of so many bits holds them: of 16 themselves, of 8
    decode(encode(rows))."""
    if row_bits == 16:
        return rows
    with np.errstate(invalid="ignore"):  # behind the real tokens of a ragged append there may be anything
        return decode(encode(rows))
