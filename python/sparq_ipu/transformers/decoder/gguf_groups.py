# SPDX-License-Identifier: Apache-2.0
"""Weights of 4 bits as a GGUF file stores them: codes, and a scale and a zero for each group of 32.

Rounding float32 weights to 4 bits again would lose more. All kinds of 4 bits with groups of 32 weights are
scale * (code - 8) + zero:

Q4_0   d * (code - 8)
Q4_1   d * code + m: the zero is m + 8 d
Q4_K   blocks of 8 groups: (d * s) * code - dmin * t, with s and t of 6 bits for each group

Codes stay in pairs, those 16 inputs apart in one byte: so they are in a file (Q4_0, Q4_1) and in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sparq_ipu.transformers.decoder.few_bits import Groups


def groups_of(kind: Any, data: np.ndarray) -> Groups:
    """Of rows of a matrix of a file.

    Args:
        kind: a `gguf.GGMLQuantizationType` with a name in KINDS.
        data: the bytes of each row.
    """
    pairs, scale, zero = (torch.from_numpy(part.reshape(len(data), -1)) for part in KINDS[kind.name](data))
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
