# SPDX-License-Identifier: Apache-2.0
"""Weights of 4 bits as a GGUF file stores them: codes, and a scale and a zero for each group of 32.

Rounding float32 weights to 4 bits again would lose more. All kinds of 4 bits whose groups have 32 weights are
scale * (code - 8) + zero:

Q4_0   d * (code - 8)
Q4_1   d * code + m: the zero is m + 8 d
Q4_K   blocks of 8 groups: (d * s) * code - dmin * t, with s and t of 6 bits for each group

Codes stay in pairs, those 16 inputs apart in one byte: so they are in a file (Q4_0, Q4_1) and in memory.
"""

from __future__ import annotations

from typing import Any, Tuple

import numpy as np
import torch

#: paired codes (n, m / 2) uint8, scale and zero (n, m / 32) float32
Groups = Tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def groups_of(kind: Any, data: np.ndarray, order: np.ndarray) -> Groups | None:
    """Of a matrix of a file; None where its kind has no such groups.

    Args:
        kind: a `gguf.GGMLQuantizationType`.
        data: the bytes of each row.
        order: the row of the file that becomes each row of the result.
    """
    unpack = KINDS.get(kind.name)
    if unpack is None:
        return None
    parts = [torch.from_numpy(part.reshape(len(data), -1)) for part in unpack(data)]
    if not np.array_equal(order, np.arange(len(order))):
        parts = [part[torch.from_numpy(order)] for part in parts]
    pairs, scale, zero = parts
    return pairs, scale, zero


def _half(data: np.ndarray, start: int) -> np.ndarray:
    """A float16 of each block, in float32."""
    return data[..., start : start + 2].copy().view(np.float16).astype(np.float32)


def _q4_0(data: np.ndarray) -> tuple[np.ndarray, ...]:
    blocks = data.reshape(-1, 18)
    scale = _half(blocks, 0)
    return blocks[:, 2:].copy(), scale, np.zeros_like(scale)


def _q4_1(data: np.ndarray) -> tuple[np.ndarray, ...]:
    blocks = data.reshape(-1, 20)
    scale = _half(blocks, 0)
    return blocks[:, 4:].copy(), scale, _half(blocks, 2) + 8 * scale


def _q4_k(data: np.ndarray) -> tuple[np.ndarray, ...]:
    import gguf

    blocks = data.reshape(-1, 144)
    scales, lows = gguf.quants.Q4_K.get_scale_min(blocks[:, 4:16])
    scale = _half(blocks, 0) * scales.astype(np.float32)
    low = _half(blocks, 2) * lows.astype(np.float32)
    # two groups in the halves of 32 bytes
    halves = blocks[:, 16:].reshape(-1, 4, 1, 2, 16)
    low_nibbles, high_nibbles = halves & 15, halves >> 4
    codes = np.concatenate([low_nibbles, high_nibbles], axis=2)  # (blocks, 4, group, half, 16)
    return codes[:, :, :, 0] | codes[:, :, :, 1] << 4, scale, 8 * scale - low


KINDS = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q4_K": _q4_k}
