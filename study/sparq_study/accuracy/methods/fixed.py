# SPDX-License-Identifier: Apache-2.0
"""Methods that choose positions without looking at the query: windows, sinks, strides."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from sparq_reference import checks

from .base import Method, Span, attend_to


@dataclasses.dataclass(frozen=True)
class Local(Method):
    """The last `top_k` positions. Transfer: 2 k d + 2 d."""

    name: ClassVar[str] = "local"
    top_k: int = dataclasses.field(default=128, metadata={"short": "k"})

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_integer(self.name, "top_k", self.top_k, 1, checks.MAX_CAPACITY)

    def window(self) -> int | None:
        return self.top_k

    def selected(self, span: Span) -> torch.Tensor:
        """(n_queries, seq_len) bool."""
        return torch.arange(span.seq_len)[None, :] > span.positions() - self.top_k

    def _attend(self, span: Span) -> torch.Tensor:
        return attend_to(span, self.selected(span) & span.visible())

    def _cache_elements(self, seq_len: int, head_dim: int) -> tuple[float, float]:
        return 2 * head_dim * (min(self.top_k, seq_len) + 1), 0  # appendix G: rows, and the new one


@dataclasses.dataclass(frozen=True)
class LMInfinite(Local):
    """The first `sinks` positions and the last `top_k - sinks` (arXiv:2308.16137).

    The original also caps the distance that the rotary embedding sees. Sequences here stay inside the trained
    context, where that cap does nothing. Transfer: 2 k d + 2 d.
    """

    name: ClassVar[str] = "lm_infinite"
    sinks: int = dataclasses.field(default=16, metadata={"short": "sinks"})

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_integer(self.name, "sinks", self.sinks, 0, checks.MAX_CAPACITY - 1)
        checks.check_integer(self.name, "top_k", self.top_k, self.sinks + 1, checks.MAX_CAPACITY)

    def window(self) -> int | None:
        return self.top_k - self.sinks

    def selected(self, span: Span) -> torch.Tensor:
        position = torch.arange(span.seq_len)[None, :]
        return (position < self.sinks) | (position > span.positions() - (self.top_k - self.sinks))


@dataclasses.dataclass(frozen=True)
class Strided(Local):
    """Every n-th position back from the query, n = ceil(S / top_k): a baseline of ALISA.

    Transfer: 2 k d + 2 d, its upper bound: at most k positions are read, fewer where top_k does not divide S.
    """

    name: ClassVar[str] = "strided"

    def window(self) -> int | None:
        return 0

    def selected(self, span: Span) -> torch.Tensor:
        position, query = torch.arange(span.seq_len)[None, :], span.positions()
        stride = torch.div(query + self.top_k, self.top_k, rounding_mode="floor")  # ceil((query + 1) / top_k)
        return (query - position) % stride == 0
