# SPDX-License-Identifier: Apache-2.0
"""The interface between lean forward passes and the cache: what a layer of a cache does with tokens."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Sequence

import torch
from transformers.cache_utils import CacheLayerMixin

from sparq_ipu import KVCache
from sparq_ipu.backends.cpu import CPUBackend
from sparq_ipu.transformers.decoder.rotary import Rotary
from sparq_ipu.transformers.settings.layers import PROMPT_BLOCKS_FROM, LayerSettings, dense_rows

if TYPE_CHECKING:
    from sparq_ipu.backends.cpu import Wave


class StepLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # partly typed in transformers
    """A layer of a cache that stores the tokens of a lean forward pass and attends to them. Rows of a step
    are tokens: one of each row of a batch, or several of one text."""

    is_sliding = False
    supports_early_init = False
    #: of `enable`, and the first position whose row leaves out blocks
    prompt_blocks = 0.0
    prompt_blocks_from = PROMPT_BLOCKS_FROM

    def blocks_of(self, window: int) -> tuple[float, int]:
        """`blocks` and `blocks_from` of prompt attention; where there is a window, all blocks are read."""
        return 0.0 if window else self.prompt_blocks, self.prompt_blocks_from

    def takes_step(self, n_tokens: int, position_ids: Any, attention_mask: Any) -> bool:
        """Whether the tokens of this forward pass, so many in each row, may come by `step`. Arguments: as the
        model gets them."""
        return n_tokens == 1

    @property
    def waits(self) -> bool:
        """Several tokens come to `attend`, not to `attend_prompt`."""
        return True

    @abstractmethod
    def takes_prompt(self, position_ids: Any, attention_mask: Any) -> bool:
        """As `takes_step`, of several tokens that may come by `read`."""

    def read(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        last_only: bool = False,
    ) -> torch.Tensor:
        """Store several tokens and attend to them: query, key, value (batch, heads, n_tokens, head_dim) ->
        (batch, n_tokens, n_heads, head_dim). scaling: of the scores. last_only: the last token's is enough,
        (batch, 1, n_heads, head_dim)."""
        factor = scores_factor(scaling, query.shape[-1])
        key, value = self.update(key, value)
        if self.waits:
            return self.attend(query, key, value, factor)
        self.attend_prefill(key, value)
        attended = self.attend_prompt(query[:, :, -1:] if last_only else query, scaling)
        assert attended is not None  # of `takes_prompt`
        return attended

    @abstractmethod
    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, factor: float = 1.0
    ) -> torch.Tensor:
        """Of tokens that `waits` is for: query (batch, n_heads, n_tokens, head_dim) -> (batch, n_tokens,
        n_heads, head_dim). key, value: what `update` returned. factor: of the scores, beside
        1/sqrt(head_dim)."""

    def attend_prefill(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """Tokens of a prompt came to attention, which is not that of steps."""

    def attend_prompt(self, query: torch.Tensor, scaling: float | None) -> torch.Tensor | None:
        """Dense attention of a prompt's tokens, after `attend_prefill`: as `attend`; None: this layer can
        not. scaling: of the scores; None: 1/sqrt(head_dim)."""
        return None

    @abstractmethod
    def step(self, products: torch.Tensor, rotary: Rotary) -> torch.Tensor:
        """Store tokens and attend to them: all that a model does between its linear layers. products: outputs
        of the linear layers (rows, heads of query, key and value * head_dim) -> (rows, n_heads * head_dim).
        """

    @abstractmethod
    def waves(self, n_rows: int) -> list[Wave] | None:
        """The arguments with which the kernels store the tokens of a step and attend to them, with room for
        them; None: only `step` can. After the kernels have done it, `has_attended` is called."""

    @abstractmethod
    def has_attended(self, lengths: Sequence[int]) -> None:
        """The tokens were stored and attended to; `lengths` of the rows include them."""


def scores_factor(scaling: float | None, head_dim: int) -> float:
    """The factor of the scores, beside 1/sqrt(head_dim)."""
    return 1.0 if scaling is None else scaling * float(head_dim) ** 0.5


def waves_of(
    cache: KVCache,
    settings: LayerSettings | None,
    window: int | None = None,
    n_tokens: int = 1,
    n_before: int = 0,
) -> list[Wave] | None:
    """The arguments with which the CPU kernels append tokens to this cache and attend to them; None where the
    cache is on another device. Rows that are dense and rows that are not are separate waves, in order.

    Args:
        window: most recent positions that the layer sees; None: all.
        n_tokens: of each batch element. n_before: others that come before them, in the same call.
    """
    backend = cache.one_layer("sparq_attention")
    if not isinstance(backend, CPUBackend):
        return None
    if settings is None:
        return [backend.wave(None, window, n_tokens)]
    waves, lengths = [], backend.lengths.tolist()
    for token in range(n_before + 1, n_before + n_tokens + 1):
        is_dense = dense_rows(settings, [length + token for length in lengths], window)
        for dense, rows in itertools.groupby(range(len(lengths)), is_dense.__getitem__):
            index = list(rows)
            some = backend if len(index) == len(lengths) else backend.rows(index)
            waves.append(some.wave(None if dense else settings.attention, window, 1))
    return waves
