# SPDX-License-Identifier: Apache-2.0
"""Rounding of cached tensors to few bits: ALISA's channel-wise KV compression, and the key index of SparQ.

The key index is what SparQ reads of K for its approximate scores. Values are rounded and returned in float32
("fake" quantisation): this package measures accuracy, not speed.
"""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass
class ChannelRange:
    """The asymmetric channel-wise quantiser of ALISA (arXiv:2403.17312).

        x_q = round(x / step + zero),  step = (max - min) / (2^bits - 1)

    step, zero: (n_kv_heads, 1, head_dim); one pair per channel, over all positions of `of`.
    """

    step: torch.Tensor
    zero: torch.Tensor
    bits: int

    @classmethod
    def of(cls, tensor: torch.Tensor, bits: int) -> ChannelRange:
        """Range of (n_kv_heads, n_positions, head_dim), n_positions >= 1."""
        if tensor.shape[1] == 0:
            raise ValueError("quantise: n_positions must be at least 1 before the first decode step, got 0")
        low, high = tensor.amin(1, keepdim=True), tensor.amax(1, keepdim=True)
        step = (high - low) / (2**bits - 1)
        step = torch.where(step > 0, step, torch.ones_like(step))
        return cls(step, torch.round(-low / step), bits)

    def round(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as it is read back from the compressed cache. Values outside the range are clamped."""
        code = torch.round(tensor / self.step + self.zero).clamp_(0, 2**self.bits - 1)
        return (code - self.zero) * self.step


def round_key_index(key: torch.Tensor, index_bits: int, chunk: int) -> torch.Tensor:
    """The key index as it is read back: K rounded symmetrically, per component and chunk of positions.

        x_q = round(x / step),  step = max|x| / (2^(index_bits - 1) - 1)

    key: (n_kv_heads, seq_len, head_dim). Chunks are counted from position 0. The last one, if incomplete, is
        returned as it is: a cache keeps it unquantised until it is full.
    """
    full = key.shape[1] // chunk * chunk
    heads, _, dim = key.shape
    body = key[:, :full].reshape(heads, full // chunk, chunk, dim)
    top = 2 ** (index_bits - 1) - 1
    step = body.abs().amax(2, keepdim=True) / top
    step = torch.where(step > 0, step, torch.ones_like(step))
    body = torch.round(body / step).clamp_(-top, top) * step
    return torch.cat([body.reshape(heads, full, dim), key[:, full:]], dim=1)
