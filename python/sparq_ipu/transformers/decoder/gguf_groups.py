# SPDX-License-Identifier: Apache-2.0
"""Weights of 4 bits as a GGUF file has them: codes, and a scale and a zero for each group of 32.

transformers reads such a file by making float32 of it. Rounding that to 4 bits again would lose more. All
kinds of 4 bits whose groups have 32 weights are scale * (code - 8) + zero:

Q4_0   d * (code - 8)
Q4_1   d * code + m: the zero is m + 8 d
Q4_K   blocks of 8 groups: (d * s) * code - dmin * t, with s and t of 6 bits for each group
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator

import numpy as np
import torch


class GgufGroups:
    """The tensors of a file, by the names of transformers' modules.

    Raises:
        ImportError: without the package gguf.
    """

    def __init__(self, path: Path):
        import gguf

        self._gguf = gguf
        reader = gguf.GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        architecture = self._field(reader, "general.architecture")
        known = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
        n_layers = int(self._field(reader, f"{architecture}.block_count"))
        self._names = gguf.get_tensor_name_map(known[architecture], n_layers)
        self._heads = [
            int(self._field(reader, f"{architecture}.attention.head_count{kind}")) for kind in ("", "_kv")
        ]

    @staticmethod
    def _field(reader: Any, name: str) -> Any:
        field = reader.fields.get(name)
        return 1 if field is None else field.contents()

    def groups(
        self, name: str, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
        """Codes (n, m) uint8, scale and zero (n, m / 32) float32 of the module `name`.

        Args:
            weight: what transformers made of them. What is returned has been compared with that, bit by bit.

        Returns:
            None where the file has another kind, or where `weight` is something else.
        """
        found = self._tensors.get(self._names.get_name(f"{name}.weight", (".weight",)) or "")
        unpack = None if found is None else _KINDS.get(found.tensor_type.name)
        if found is None or unpack is None:
            return None
        stored = torch.from_numpy(self._gguf.quants.dequantize(found.data, found.tensor_type))
        stored = stored.to(weight.dtype)
        if stored.shape != weight.shape:
            return None
        for order in self._orders(len(stored)):
            if torch.equal(stored[order], weight):
                parts = (part.reshape(len(weight), -1) for part in unpack(self._gguf, found.data))
                codes, scale, zero = (torch.from_numpy(part)[order] for part in parts)
                return codes, scale, zero
        return None

    def _orders(self, n_rows: int) -> Iterator[torch.Tensor]:
        """Orders of rows that transformers may have put them in: rotary embedding pairs other components
        there than in llama.cpp."""
        rows = torch.arange(n_rows)
        yield rows
        for n_heads in self._heads:
            if n_rows % (2 * n_heads) == 0:
                yield rows.view(n_heads, -1, 2).transpose(1, 2).reshape(-1)


def _nibbles(codes: np.ndarray) -> np.ndarray:
    """Low halves of the bytes of a group, then the high ones."""
    return np.concatenate([codes & 15, codes >> 4], axis=-1)


def _half(data: np.ndarray, start: int) -> np.ndarray:
    """A float16 of each block, in float32."""
    return data[..., start : start + 2].copy().view(np.float16).astype(np.float32)


def _q4_0(gguf: Any, data: np.ndarray) -> tuple[np.ndarray, ...]:
    blocks = data.reshape(-1, 18)
    scale = _half(blocks, 0)
    return _nibbles(blocks[..., 2:]), scale, np.zeros_like(scale)


def _q4_1(gguf: Any, data: np.ndarray) -> tuple[np.ndarray, ...]:
    blocks = data.reshape(-1, 20)
    scale = _half(blocks, 0)
    return _nibbles(blocks[..., 4:]), scale, _half(blocks, 2) + 8 * scale


def _q4_k(gguf: Any, data: np.ndarray) -> tuple[np.ndarray, ...]:
    blocks = data.reshape(-1, 144)
    scales, lows = gguf.quants.Q4_K.get_scale_min(blocks[:, 4:16])
    scale = _half(blocks, 0) * scales.astype(np.float32)
    low = _half(blocks, 2) * lows.astype(np.float32)
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32))  # two groups in the halves of 32 bytes
    return codes, scale, 8 * scale - low


_KINDS = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q4_K": _q4_k}
