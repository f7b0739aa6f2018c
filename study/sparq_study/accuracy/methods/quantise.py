# SPDX-License-Identifier: Apache-2.0
"""Rounding of a whole cache to few bits: ALISA's channel-wise KV compression.

Values are rounded and returned in float32 ("fake" quantisation): this package measures accuracy, not speed.
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
