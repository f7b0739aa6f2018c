# SPDX-License-Identifier: Apache-2.0
"""Queries, keys and values of a step of one token, as its linear layers say them: what is between these and
attention, by PyTorch or, with the cache on "cpu", in one call with attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sparq_ipu import KVCache
from sparq_ipu.backends.cpu import CPUBackend
from sparq_ipu.transformers.settings.layers import AnyLayerSettings

if TYPE_CHECKING:
    from sparq_ipu.backends.cpu import AttentionOfStep

_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


class Rotary:
    """The rotary embedding of a step, x * cos + rotate_half(x) * sin, the same in every layer.

    Args:
        cos, sin: (batch, head_dim), or of one row for all; the sine with the sign that its component of
            `rotate_half` has.
        n_heads: of a query.
    """

    def __init__(self, cos: torch.Tensor, sin: torch.Tensor, n_heads: int):
        self._cos, self._sin, self._n_heads = cos.contiguous(), sin.contiguous(), n_heads
        self._dtype, self._type = cos.dtype, _NAMES.get(cos.dtype, "")
        self._rows, self._head_dim = cos.shape
        self._addresses = self._cos.data_ptr(), self._sin.data_ptr()

    def turned(self, products: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value, (batch, heads, 1, head_dim) float16.

        Args:
            products: (batch, heads of all three * head_dim).
        """
        heads, n_heads = products.view(len(products), -1, 1, self._head_dim), self._n_heads
        n_turned = (heads.shape[1] + n_heads) // 2
        turned, value = heads[:, :n_turned], heads[:, n_turned:].to(torch.float16)
        cos, sin = self._cos[:, None, None], self._sin[:, None, None]
        turned = (turned * cos).add_(turned.roll(self._head_dim // 2, 3).mul_(sin)).to(torch.float16)
        return turned[:, :n_heads], turned[:, n_heads:], value

    def of_layer(self, cache: KVCache, settings: AnyLayerSettings | None) -> AttentionOfStep | None:
        """What the kernels take to append a token to this cache and attend to it. None: they do not; take
        what is `turned`. That is for other devices and types than they have, and for window attention.

        Args:
            settings: None: densely.
        """
        backend = cache.one_layer("sparq_attention")
        if not isinstance(backend, CPUBackend) or not self._type:
            return None
        if settings is None:
            return backend.attention_of_step(None, 0)
        if settings.kind == "window":
            return None
        return backend.attention_of_step(settings.attention, settings.min_seq_len)

    def attend(
        self, products: torch.Tensor, attention: AttentionOfStep | None
    ) -> tuple[torch.Tensor, list[int]] | None:
        """Append the token and attend to it, in one call.

        Args:
            products: as of `turned`.
            attention: as of `of_layer`.

        Returns:
            (batch, n_heads * head_dim) of the type of `products`, and the lengths with the token. None, and
            nothing has happened: take what is `turned`. That is where `attention` is None, for products of
            another type, rows of which some are dense, and numbers that float16 does not have.

        Raises:
            ValueError: no room in the capacity.
        """
        if attention is None or products.dtype is not self._dtype or not products.is_contiguous():
            return None
        output = products.new_empty(len(products), self._n_heads * self._head_dim)
        cache, settings, min_seq_len = attention
        given = self._type, products.data_ptr(), *self.positions, output.data_ptr()
        lengths = cache.attend_rotary(*given, settings, min_seq_len)
        return None if lengths is None else (output, lengths)

    @property
    def positions(self) -> tuple[int, int, int, int]:
        """Of cosine and sine the addresses and the rows; the heads of a query."""
        return (*self._addresses, self._rows, self._n_heads)

    @property
    def is_bfloat16(self) -> bool:
        return self._dtype is torch.bfloat16
