# SPDX-License-Identifier: Apache-2.0
"""A budget by mass: as many positions as hold a share of the approximate weights."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from sparq_reference import checks

from .base import Method, Span
from .sparq import SparQ


@dataclasses.dataclass(frozen=True)
class TopP(SparQ):
    """SparQ that reads the fewest best positions whose approximate weights sum to p, at most top_k.

    The last n_local positions are read in any case and count. With index_bits=4 this is Twilight's pruning by
    mass over scores of 4 bits (arXiv:2502.02770); it has it behind another selection and per query head.

    Transfer: as SparQ with the mean number of rows that were read in place of top_k.
    """

    name: ClassVar[str] = "top_p"

    p: float = dataclasses.field(default=0.9, metadata={"short": "p"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.p <= 1:
            checks.fail(self.name, "p", "be in (0, 1]", self.p)

    def select(self, span: Span) -> tuple[torch.Tensor, torch.Tensor]:
        best, s_hat = super().select(span)
        weight = s_hat.sum(1)
        is_local = best & (torch.arange(span.seq_len)[None, :] > span.positions() - self.local)
        others = weight.masked_fill(~best | is_local, -1.0)
        ordered = others.sort(stable=True, dim=-1, descending=True)
        before = (weight * is_local).sum(-1, keepdim=True) + ordered.values.clamp(min=0).cumsum(-1)
        before = before - ordered.values.clamp(min=0)  # the mass that is read before this one
        needed = (before < self.p * span.query.shape[1]) & (ordered.values >= 0)
        selected = torch.zeros_like(best).scatter_(-1, ordered.indices, needed) | is_local
        span.history.rows += int(selected.sum())
        span.history.steps += selected.shape[0] * selected.shape[1]
        return selected, s_hat

    def with_rows(self, rows: float | None) -> Method:
        return self if rows is None else dataclasses.replace(self, top_k=max(1, self.local, round(rows)))
