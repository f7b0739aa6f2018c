# SPDX-License-Identifier: Apache-2.0
"""SparQ attention of a span by the CPU kernels of this package, in place of the formulas in torch.

Keys and values are float16 there, as in every cache of this package. It takes a small part of the time in
long contexts.
"""

from __future__ import annotations

import numpy as np
import torch

import sparq_ipu
from sparq_ipu.tokens import MAX_TOKENS

from .methods import Method, SparQ
from .methods.key_index import to_half
from .prefix import Prefix


def has_kernel(method: Method) -> bool:
    """Whether the kernels are this method, but for the rounding of keys and values."""
    if not isinstance(method, SparQ):
        return False
    names = ("rank", "top_k", "n_local", "mean_value_from", "index_bits")
    return method == SparQ(**{name: getattr(method, name) for name in names})


def _half(tensor: torch.Tensor) -> np.ndarray:
    """(heads, n, head_dim) -> (1, heads, n, head_dim) float16."""
    return np.ascontiguousarray(to_half(tensor)[None].numpy().astype(np.float16))


class KernelCaches:
    """KV caches of one prefix, a layer each, for each kind of key index.

    room: tokens that may follow the prefix.
    """

    def __init__(self, prefix: Prefix, room: int) -> None:
        self.prefix, self.room = prefix, room
        self._made: dict[int, list[sparq_ipu.KVCache]] = {}

    def of(self, index_bits: int) -> list[sparq_ipu.KVCache]:
        """As the prefix left them: tokens of a former span are forgotten."""
        if index_bits not in self._made:
            self._made[index_bits] = [self._filled(layer, index_bits) for layer in sorted(self.prefix.layers)]
        for cache in self._made[index_bits]:
            cache.truncate(np.array([self.prefix.length]))
        return self._made[index_bits]

    def _filled(self, layer: int, index_bits: int) -> sparq_ipu.KVCache:
        held = self.prefix.layers[layer]
        key, value = (_half(torch.cat(pieces, 1)) for pieces in (held.keys, held.values))
        _, n_kv_heads, length, head_dim = key.shape
        cache = sparq_ipu.KVCache(
            1,
            n_kv_heads,
            head_dim,
            length + self.room,
            device="cpu",
            n_threads=torch.get_num_threads(),
            index_bits=index_bits,
        )
        cache.append(key, value)
        return cache


class KernelRun:
    """Attention of every layer during a span, token after token."""

    def __init__(self, method: SparQ, caches: list[sparq_ipu.KVCache]) -> None:
        self.method, self.caches = method, caches

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """query (n_kv_heads, group_size, n, d), key and value (n_kv_heads, n, d) -> the shape of query."""
        method, shape = self.method, query.shape
        if abs(scale * shape[3] ** 0.5 - 1) > 1e-6:
            message = f"accuracy: kernels must have a model whose scale is 1 / sqrt(head_dim), got {scale}"
            raise ValueError(message)
        settings = sparq_ipu.SparqSettings(
            rank=method.rank,
            top_k=method.top_k,
            n_local=method.local,
            mean_value=0 <= method.mean_value_from <= layer,
        )
        out = []
        for at in range(0, shape[2], MAX_TOKENS):
            some = slice(at, at + MAX_TOKENS)
            heads = _half(query[:, :, some].flatten(0, 1))
            tokens = _half(key[:, some]), _half(value[:, some])
            out.append(sparq_ipu.append_and_attend(heads, *tokens, self.caches[layer], settings))
        return torch.from_numpy(np.concatenate(out, 2)[0]).float().reshape(shape)
