# SPDX-License-Identifier: Apache-2.0
"""A method that scores pages of positions by the least and the greatest number of each key component."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from sparq_reference import checks

from .base import HIDDEN, Method, Span, attend_to, top_positions


@dataclasses.dataclass(frozen=True)
class Quest(Method):
    """Whole pages by an upper bound of their scores (arXiv:2406.10774).

    A page is `page` positions with the minimum and the maximum of each key component. Its score for a query
    is sum_c max(q_c min_c, q_c max_c). Read are the top_k // page best pages, that of the newest position
    always among them. For a group of heads pages are ordered by the sum over heads of softmax(score /
    sqrt(d)) over pages, as positions are in SparQ; the paper has one head a group. It also leaves its first
    two layers dense.

    Transfer: 2 d ceil(S / page) + 2 k d + 2 d.
    """

    name: ClassVar[str] = "quest"

    top_k: int = dataclasses.field(default=128, metadata={"short": "k"})
    page: int = dataclasses.field(default=16, metadata={"short": "page"})

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_integer(self.name, "page", self.page, 1, checks.MAX_CAPACITY)
        checks.check_integer(self.name, "top_k", self.top_k, self.page, checks.MAX_CAPACITY)

    def bounds(self, span: Span) -> tuple[torch.Tensor, torch.Tensor]:
        """(least, greatest), each (n_kv_heads, n_pages, head_dim); of the last page as far as it goes."""
        n_pages = -(-span.seq_len // self.page)
        shape = (span.key.shape[0], n_pages, self.page, span.head_dim)
        missing = (0, 0, 0, n_pages * self.page - span.seq_len)
        low = torch.nn.functional.pad(span.key, missing, value=float("inf")).reshape(shape).amin(2)
        high = torch.nn.functional.pad(span.key, missing, value=float("-inf")).reshape(shape).amax(2)
        return low, high

    def page_scores(self, span: Span) -> torch.Tensor:
        """(n_kv_heads, group_size, n_queries, n_pages) before the softmax."""
        low, high = span.once(f"pages of {self.page}", self.bounds)
        # Pages behind the newest position, and what its own will hold, are not used by `select`.
        n_pages = -(-span.seq_len // self.page)
        low, high = low[:, :n_pages], high[:, :n_pages]
        of_high, of_low = span.query.clamp(min=0), span.query.clamp(max=0)
        return torch.einsum("hgnd,hpd->hgnp", of_high, high) + torch.einsum("hgnd,hpd->hgnp", of_low, low)

    def select(self, span: Span) -> torch.Tensor:
        """(n_kv_heads, n_queries, seq_len) bool."""
        newest = span.positions() // self.page
        scores = self.page_scores(span) * span.scale
        pages = torch.arange(scores.shape[-1])[None, :]
        # A page that is not full holds the newest position, which is read whatever its score.
        weight = torch.softmax(scores.masked_fill_(pages >= newest, HIDDEN), dim=-1).sum(1)
        weight.masked_fill_(pages == newest, span.query.shape[1] + 1.0).masked_fill_(pages > newest, -1.0)
        read = top_positions(weight, self.top_k // self.page) & (pages <= newest)
        return read.repeat_interleave(self.page, -1)[..., : span.seq_len] & span.visible()

    def _attend(self, span: Span) -> torch.Tensor:
        return attend_to(span, self.select(span)[:, None])

    def _cache_elements(self, seq_len: int, head_dim: int) -> tuple[float, float]:
        n_pages = -(-seq_len // self.page)
        rows = 2 * min(self.top_k // self.page * self.page, seq_len) * head_dim + 2 * head_dim
        return rows, n_pages * 2 * head_dim
