# SPDX-License-Identifier: Apache-2.0
"""The interface between a lean step and the cache: what a layer of a cache provides to take its token."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Sequence

import torch
from transformers.cache_utils import CacheLayerMixin

from sparq_ipu.transformers.decoder.rotary import Rotary

if TYPE_CHECKING:
    from sparq_ipu.backends.cpu import AttentionOfStep


class StepLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # partly typed in transformers
    """A layer of a cache that stores the token of a lean step and attends to it."""

    def takes_step(self, position_ids: Any, attention_mask: Any) -> bool:
        """Whether the tokens of this forward pass, one in each row, may come by `step`. Arguments: as the
        model gets them."""
        return True

    @abstractmethod
    def step(self, products: torch.Tensor, rotary: Rotary) -> torch.Tensor:
        """Store one token and attend to it: all that a model does between its linear layers.

        Args:
            products: (batch, heads of query, key and value * head_dim), outputs of the linear layers.

        Returns:
            (batch, n_heads * head_dim), of the same type.
        """

    @abstractmethod
    def attention_of_step(self, rotary: Rotary) -> AttentionOfStep | None:
        """The arguments with which the kernels store one token and attend to it, with room for it; None: only
        `step` can. After the kernels have done it, `has_attended` is called."""

    @abstractmethod
    def has_attended(self, lengths: Sequence[int]) -> None:
        """One token was stored and attended to; `lengths` of the rows include it."""
