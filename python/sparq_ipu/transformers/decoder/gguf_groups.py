# SPDX-License-Identifier: Apache-2.0
"""Weights of 8 bits or fewer as a GGUF file stores them: codes, and the scales of each group of 32.

Nothing is rounded but products of scales, to float16, of which the weights of 16 bits lose as much:

Q4_0, Q5_0, Q8_0   d * code, of which the code has a sign
Q4_1, Q5_1         d * code + m; with 4 bits the zero is m + 8 d
Q4_K, Q5_K         blocks of 8 groups: (d * s) * code - dmin * t, with s and t of 6 bits for each group
Q6_K               blocks of 16 half groups: (d * s) * code, with s of 8 bits for each half
IQ4_NL, IQ4_XS     d * value or (d * s) * value, one of 16 values of 8 bits
"""

from __future__ import annotations

from typing import Any, Callable, Tuple

import numpy as np
import torch

from sparq_ipu.transformers.decoder.few_bits import Groups

#: codes of each block's groups as the kernels store them, and scale and zero of each group
Parts = Tuple[np.ndarray, np.ndarray, np.ndarray]


def groups_of(kind: Any, data: np.ndarray) -> Groups:
    """Of rows of a matrix of a file, the bytes of each; kind: a `gguf.GGMLQuantizationType` with a name in
    KINDS."""
    import gguf

    blocks = data.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
    codes, *scales = KINDS[kind.name](blocks)
    pairs = np.stack([part.reshape(len(data), -1) for part in scales], axis=2)
    return torch.from_numpy(codes.reshape(len(data), -1)), torch.from_numpy(pairs)


def _half(blocks: np.ndarray, start: int) -> np.ndarray:
    """A float16 of each block, in float32."""
    numbers: np.ndarray = blocks[:, start : start + 2].copy().view(np.float16).astype(np.float32)
    return numbers


def _unpaired(pairs: np.ndarray) -> np.ndarray:
    """(..., n) bytes of two codes -> (..., 2, n): lower halves, then upper ones."""
    return np.stack((pairs & 15, pairs >> 4), axis=-2)


def _fifth(blocks: np.ndarray, start: int) -> np.ndarray:
    """Codes of 5 bits, (blocks, 32): the upper bits in 4 bytes, and then pairs."""
    upper: np.ndarray = np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")
    codes: np.ndarray = _unpaired(blocks[:, start + 4 :]).reshape(-1, 32) | upper << 4
    return codes


def _q4_0(blocks: np.ndarray) -> Parts:
    scale = _half(blocks, 0)
    return blocks[:, 2:].copy(), scale, np.zeros_like(scale)


def _q4_1(blocks: np.ndarray) -> Parts:
    scale = _half(blocks, 0)
    return blocks[:, 4:].copy(), scale, _half(blocks, 2) + 8 * scale


def _q5_0(blocks: np.ndarray) -> Parts:
    scale = _half(blocks, 0)
    return _fifth(blocks, 2) + np.uint8(128 - 16), scale, np.zeros_like(scale)


def _q5_1(blocks: np.ndarray) -> Parts:
    return _fifth(blocks, 4) + np.uint8(128), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: np.ndarray) -> Parts:
    scale = _half(blocks, 0)
    return blocks[:, 2:] ^ np.uint8(128), scale, np.zeros_like(scale)


def _k_scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and lows of the 8 groups of a block."""
    import gguf

    scales, lows = gguf.quants.Q4_K.get_scale_min(blocks[:, 4:16])
    return _half(blocks, 0) * scales.astype(np.float32), _half(blocks, 2) * lows.astype(np.float32)


def _q4_k(blocks: np.ndarray) -> Parts:
    scale, low = _k_scales(blocks)
    # two groups in the halves of 32 bytes
    codes = _unpaired(blocks[:, 16:].reshape(-1, 4, 2, 16))  # (blocks, 4, half, group, 16)
    return (codes[:, :, 0] | codes[:, :, 1] << 4), scale, 8 * scale - low


def _q5_k(blocks: np.ndarray) -> Parts:
    scale, low = _k_scales(blocks)
    upper = blocks[:, 16:48, None] >> np.arange(8, dtype=np.uint8) & 1  # (blocks, 32, group)
    codes = _unpaired(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return codes + (upper.transpose(0, 2, 1) << 4) + np.uint8(128), scale, -low


def _q6_k(blocks: np.ndarray) -> Parts:
    lower = _unpaired(blocks[:, :128].reshape(-1, 2, 64))
    upper = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8) & 3
    codes = lower.reshape(-1, 8, 32) | upper.reshape(-1, 8, 32) << 4
    scale = blocks[:, 192:208].copy().view(np.int8) * _half(blocks, 208)
    return codes + np.uint8(128 - 32), scale[:, ::2], scale[:, 1::2]


def _iq4_nl(blocks: np.ndarray) -> Parts:
    scale = _half(blocks, 0)
    return _values(_unpaired(blocks[:, 2:])), scale, np.zeros_like(scale)


def _iq4_xs(blocks: np.ndarray) -> Parts:
    upper = blocks[:, 2:4].copy().view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    lower = _unpaired(blocks[:, 4:8]).transpose(0, 2, 1).reshape(-1, 8)
    scale = _half(blocks, 0) * (lower + 16.0 * upper - 32).astype(np.float32)
    return _values(_unpaired(blocks[:, 8:].reshape(-1, 8, 16))), scale, np.zeros_like(scale)


def _values(codes: np.ndarray) -> np.ndarray:
    import gguf

    values: np.ndarray = (np.array(gguf.quants.IQ4_NL.kvalues) + 128).astype(np.uint8)[codes]
    return values


KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q4_K": _q4_k,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q8_0": _q8_0,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}
