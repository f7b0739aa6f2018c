# SPDX-License-Identifier: Apache-2.0
"""Rows of K and V in 8 bits: what the selected positions are attended to with, after they were fetched.

Keys and values are rounded to float16, then stored as integers of 8 bits, and read back as float16. All
arithmetic is float32, one rounding an operation, with to_half where it says float16: a device can repeat it
bit for bit. round() is to the nearest integer, ties to even. 1 / x and x / y are correctly rounded.

"int8" is what the kernels have: groups of 16 components share a scale of 8 significant bits
(`sparq_reference.row_codes`, docs/exactness.md, E10). Keys and values are rounded as they come, so the key
index and the mean value are made from rounded rows too. The two others are what it was chosen among.

"int8_row", for a row x of head_dim components, K and V alike:

    scale = float16(max|x| * (1 / 127))
    code = min(127, max(-127, round(x * (1 / scale))))          0 where scale is 0
    read back: float16(code * scale)

"int8_block", K by the blocks of the key index (docs/exactness.md, E9), V as in "int8_row". low and step are
those that the key index of index_bits b has for the component in the block of 64 positions:

    fine = step * (1 / n)                                       n = 255 / (2^b - 1): 17 for b = 4, 1 for b = 8
    code = min(255, max(0, round((x - low) * (1 / fine))))      0 where fine is 0
    read back: float16(low + fine * code)

So the keys need no scales of their own, wherever low and step are at hand. A key behind the last full block
is not rounded to 8 bits: its block has no low and step yet.
"""

from __future__ import annotations

import numpy as np
import torch

from sparq_reference import row_codes

from .key_index import KeyIndex, to_half

ROWS = ("fp16", "int8", "int8_row", "int8_block")


def as_held(rows: torch.Tensor) -> torch.Tensor:
    """(..., head_dim) float32 -> the same as a cache with row_bits=8 holds it."""
    half = to_half(rows).numpy().astype(np.float16)
    return torch.tensor(row_codes.round_rows(half, 8).astype(np.float32))


def scales_of_row(rows: str, head_dim: int) -> int:
    """Scales that the key and the value of a position have together, numbers of 16 bits."""
    return {"int8": 2 * -(-head_dim // row_codes.GROUP), "int8_row": 2, "int8_block": 1}[rows]


def _inverse(step: torch.Tensor) -> torch.Tensor:
    """1 / step, and 0 where that is 0, so that codes become 0."""
    return torch.where(step == 0, torch.zeros(()), torch.ones(()) / torch.where(step == 0, 1.0, step))


def round_rows(rows: torch.Tensor) -> torch.Tensor:
    """(..., head_dim) float32 -> the same as "int8_row" reads it back."""
    half = to_half(rows)
    scale = to_half(half.abs().amax(-1, keepdim=True) * (torch.tensor(1.0) / torch.tensor(127.0)))
    code = torch.round(half * _inverse(scale)).clamp_(-127, 127)
    return to_half(code * scale)


def round_blocks(key: torch.Tensor, index_bits: int) -> torch.Tensor:
    """(n_kv_heads, seq_len, head_dim) -> the full blocks of 64 positions, as "int8_block" reads them back."""
    index = KeyIndex.of(key, index_bits)
    n_kv_heads, n_blocks, block, head_dim = index.code.shape
    half = to_half(key[:, : index.n_positions]).reshape(index.code.shape)
    low = index.low[:, :, None]
    fine = index.step[:, :, None] * (torch.tensor(1.0) / torch.tensor(255.0 / (2**index_bits - 1)))
    code = torch.round((half - low) * _inverse(fine)).clamp_(0, 255)
    return to_half(low + fine * code).reshape(n_kv_heads, n_blocks * block, head_dim)
