# SPDX-License-Identifier: Apache-2.0
"""Rows of K and V in 8 bits, as the kernels hold them (`sparq_reference.row_codes`, docs/exactness.md, E10).

Groups of 16 components share a scale of 8 significant bits. Keys and values are rounded as they come, so the
key index and the mean value are made from rounded rows too.
"""

from __future__ import annotations

import numpy as np
import torch

from sparq_reference import row_codes

from .key_index import to_half

ROWS = ("fp16", "int8")


def as_held(rows: torch.Tensor) -> torch.Tensor:
    """(..., head_dim) float32 -> the same as a cache with row_bits=8 holds it."""
    half = to_half(rows).numpy().astype(np.float16)
    return torch.tensor(row_codes.round_rows(half, 8).astype(np.float32))


def scales_of_row(head_dim: int) -> int:
    """Scales that the key and the value of a position have together, numbers of 16 bits."""
    return 2 * -(-head_dim // row_codes.GROUP)
