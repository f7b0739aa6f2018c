# SPDX-License-Identifier: Apache-2.0
"""The rotary embedding of a decode step. PyTorch computes query, key and value from the outputs of the linear
layers, or one call of the CPU kernels does all up to the output of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from sparq_ipu.backends.cpu import AttentionOfStep

#: the types that the kernels take
_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


class Rotary:
    """The rotary embedding of a step, x * cos + rotate_half(x) * sin, the same in every layer.

    Args:
        cos, sin: (batch, head_dim), or one row for all; each component of the sine has the sign that
            `rotate_half` gives it.
        n_heads: of a query.
    """

    def __init__(self, cos: torch.Tensor, sin: torch.Tensor, n_heads: int):
        self._cos, self._sin, self._n_heads = cos.contiguous(), sin.contiguous(), n_heads
        self._rows, self._head_dim = cos.shape
        self.dtype = cos.dtype
        #: arguments of the kernels: addresses of cosine and sine, their rows, and the heads of a query; valid
        #: as long as this object
        self.for_kernels = self._cos.data_ptr(), self._sin.data_ptr(), self._rows, n_heads

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

    def attend(
        self, products: torch.Tensor, attention: AttentionOfStep | None
    ) -> tuple[torch.Tensor, list[int]] | None:
        """Append the token and attend to it, in one call of the kernels.

        Args:
            products: as of `turned`.
            attention: as of `step_layer.attention_of_step`.

        Returns:
            (batch, n_heads * head_dim) of the type of `products`, and the lengths with the token. None, and
            nothing has happened, where `attention` is None, the products have another type than the
            embedding or one that the kernels do not take, or float16 can not hold a number. The caller then
            uses `turned`.

        Raises:
            ValueError: no room in the capacity.
        """
        if attention is None or products.dtype is not self.dtype or not products.is_contiguous():
            return None
        name = _NAMES.get(self.dtype)
        if name is None:
            return None
        from sparq_ipu import _cpu

        output = products.new_empty(len(products), self._n_heads * self._head_dim)
        cache, settings = attention
        given = products.data_ptr(), *self.for_kernels, output.data_ptr()
        lengths = _cpu.attend_rotary(cache, name, *given, settings)
        return None if lengths is None else (output, lengths)
