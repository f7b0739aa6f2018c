# SPDX-License-Identifier: Apache-2.0
"""The rotary embedding of rows of tokens. PyTorch computes query, key and value from the outputs of the
linear layers, or one call of the CPU kernels does all up to the output of attention."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Sequence

import torch

if TYPE_CHECKING:
    from sparq_ipu.backends.cpu import Wave

#: the types that the kernels take
_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def of_layer_among(rotaries: Sequence[Rotary], number: int) -> Rotary:
    """The one of this number; -1: of a layer without a rotary embedding."""
    return rotaries[0].unturned if number < 0 else rotaries[number]


class Rotary:
    """The rotary embedding, x * cos + rotate_half(x) * sin.

    Args:
        cos, sin: (rows, dim), of a row of products each, or one for all; each component of the sine has the
            sign that `rotate_half` gives it. Components of a head from dim on are not rotated.
        n_heads: of a query.
        head_dim: default dim.
        factor: of the scores, beside 1/sqrt(head_dim).
        is_wide: cosine and sine are float32, and only the sum is rounded to the type of a head.
    """

    def __init__(
        self,
        cos: torch.Tensor,
        sin: torch.Tensor,
        n_heads: int,
        head_dim: int | None = None,
        factor: float = 1.0,
        is_wide: bool = False,
    ):
        self._cos, self._sin, self._n_heads = cos.contiguous(), sin.contiguous(), n_heads
        self._rows, self._dim = cos.shape
        self._head_dim = self._dim if head_dim is None else head_dim
        self._factor = factor if abs(factor - 1) > 1e-6 else 1.0  # as of `half_of`
        self._is_wide = is_wide

    @property
    def unturned(self) -> Rotary:
        """That of a layer without."""
        other = copy.copy(self)
        other._dim = 0
        return other

    @property
    def for_kernels(self) -> tuple[str, int, int, int, int, int, float]:
        """As the kernels take it (poplar_ops/cpu/decoder/decoder_step.hpp); valid as long as this object."""
        addresses = self._cos.data_ptr(), self._sin.data_ptr()
        return _NAMES[self._cos.dtype], *addresses, self._rows, self._dim, self._n_heads, self._factor

    def heads(self, products: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Views of query, key and value, (batch, heads, n_tokens, head_dim), of turned products (batch,
        n_tokens, heads of all three * head_dim)."""
        heads = products.view(*products.shape[:2], -1, self._head_dim).transpose(1, 2)
        n_turned = (heads.shape[1] + self._n_heads) // 2
        return heads[:, : self._n_heads], heads[:, self._n_heads : n_turned], heads[:, n_turned:]

    def turned(self, products: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value, (rows, heads, 1, head_dim) float16, of products (rows, heads of all three *
        head_dim)."""
        heads, n_heads = products.view(len(products), -1, 1, self._head_dim), self._n_heads
        n_turned = (heads.shape[1] + n_heads) // 2
        turned, value = heads[:, :n_turned], heads[:, n_turned:].to(torch.float16)
        if self._dim:
            cos, sin = self._cos[:, None, None], self._sin[:, None, None]
            rest, turned = turned[..., self._dim :], turned[..., : self._dim]
            turned = turned * cos + turned.roll(self._dim // 2, 3) * sin
            if self._is_wide:
                turned = turned.to(products.dtype)
            if rest.shape[3]:
                turned = torch.cat((turned, rest), 3)
        query, key = turned[:, :n_heads], turned[:, n_heads:]
        if self._factor != 1:
            query = query.float() * self._factor
        return query.to(torch.float16), key.to(torch.float16), value

    def is_for(self, dtype: torch.dtype) -> bool:
        """Whether the kernels take products of this type."""
        return dtype in _NAMES and self._cos.dtype is (torch.float32 if self._is_wide else dtype)

    def attend(
        self, products: torch.Tensor, waves: list[Wave] | None
    ) -> tuple[torch.Tensor, list[int]] | None:
        """Append the tokens and attend to them, in one call of the kernels. Arguments: as of `turned`, and
        `step_layer.waves_of`.

        Returns:
            (rows, n_heads * head_dim) of the type of `products`, and the lengths with the tokens. None, and
            nothing has happened, where `waves` is None, the products are not of `is_for`, or float16 can not
            hold a number. The caller then uses `turned`.
        """
        if waves is None or not self.is_for(products.dtype) or not products.is_contiguous():
            return None
        from sparq_ipu import _cpu

        output = products.new_empty(len(products), self._n_heads * self._head_dim)
        given = products.data_ptr(), self.for_kernels, output.data_ptr()
        lengths = _cpu.attend_rotary(waves, _NAMES[products.dtype], *given)
        return None if lengths is None else (output, lengths)
