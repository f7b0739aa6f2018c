# SPDX-License-Identifier: Apache-2.0
"""Methods that choose positions by the attention of earlier steps: H2O and ALISA's sparse window attention.

Their state changes with every query, so a span is walked one query at a time.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch

from sparq_reference import checks

from .base import Method, Span


@dataclasses.dataclass(frozen=True)
class _Walking(Method):
    """One query after the other over a selected set of positions per KV head."""

    top_k: int = dataclasses.field(default=128, metadata={"short": "k"})

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_integer(self.name, "top_k", self.top_k, 2, checks.MAX_CAPACITY)

    def _start(self, span: Span) -> Any:
        """State before the first decode step, from the prefill's weights."""
        raise NotImplementedError

    def _select(self, state: Any, position: int) -> torch.Tensor:
        """(n_kv_heads, n) indices to read at this step, all different, in any order."""
        raise NotImplementedError

    def _observe(self, state: Any, position: int, index: torch.Tensor, weight: torch.Tensor) -> None:
        """Told the weights (n_kv_heads, group_size, n) of the positions read."""
        raise NotImplementedError

    def _attend(self, span: Span) -> torch.Tensor:
        history = span.history
        if history.state is None:
            history.state = self._start(span)
        head = torch.arange(span.key.shape[0])[:, None]
        outputs = []
        for i in range(span.n_queries):
            position = span.first + i
            index = self._select(history.state, position)
            scores = torch.einsum("hgd,hnd->hgn", span.query[:, :, i], span.key[head, index]) * span.scale
            weights = torch.softmax(scores, dim=-1)
            outputs.append(torch.einsum("hgn,hnd->hgd", weights, span.value[head, index]))
            self._observe(history.state, position, index, weights)
        return torch.stack(outputs, dim=2)

    def _cache_elements(self, seq_len: int, head_dim: int) -> tuple[float, float]:
        # The scores of all S positions are read and written, as the paper counts H2O; they are no part of the
        # cache, so kv_bits does not shrink them.
        return 2 * head_dim * (min(self.top_k, seq_len) + 1), 2 * seq_len


@dataclasses.dataclass(frozen=True)
class H2O(_Walking):
    """Heavy-hitter oracle (arXiv:2306.14048): evict for good what has the least accumulated attention.

    top_k: positions kept, n_local of them the most recent (n_local -1 means top_k // 4, as in the SparQ
        paper).
    The prefill leaves exact accumulated weights, summed over the query heads of the group. At each step the
    new position enters, then, if there are more than top_k, the one outside the last n_local with the
    smallest sum leaves, then attention is computed over the rest and added to the sums: a query never reads
    more than top_k rows.

    Transfer: 2 k d + 2 d + 2 S.
    """

    name: ClassVar[str] = "h2o"
    needs_history: ClassVar[bool] = True
    n_local: int = dataclasses.field(default=-1, metadata={"short": "l"})

    def __post_init__(self) -> None:
        super().__post_init__()
        interval = f"[-1, top_k={self.top_k})"
        checks.check_integer(self.name, "n_local", self.n_local, -1, self.top_k - 1, interval)

    @property
    def local(self) -> int:
        # At least the newest position is local: it has no accumulated weight yet.
        return max(1, self.top_k // 4 if self.n_local < 0 else self.n_local)

    def window(self) -> int | None:
        return self.local

    def _start(self, span: Span) -> dict[str, torch.Tensor]:
        first, weight_sum = span.first, span.history.weight_sum
        if weight_sum is None:
            checks.fail(self.name, "history.weight_sum", "be recorded by the prefill", None)
        # The first step evicts down to top_k with the new position in, so start from the best top_k of the
        # prefill.
        weight = weight_sum[:, :first].clone()
        weight[:, max(0, first - self.local + 1) :] = float("inf")
        index = weight.topk(min(self.top_k, first), dim=-1).indices if first else weight.to(torch.long)
        return {"index": index, "sum": weight_sum[:, :first].gather(1, index)}

    def _select(self, state: dict[str, torch.Tensor], position: int) -> torch.Tensor:
        heads = state["index"].shape[0]
        index = torch.cat([state["index"], torch.full((heads, 1), position)], dim=1)
        total = torch.cat([state["sum"], torch.zeros(heads, 1)], dim=1)
        if index.shape[1] > self.top_k:
            weight = total.masked_fill(index > position - self.local, float("inf"))
            smallest = weight.argmin(1, keepdim=True)
            keep = torch.ones_like(index, dtype=torch.bool).scatter_(1, smallest, False)
            index = index[keep].view(heads, -1)
            total = total[keep].view(heads, -1)
        state["index"], state["sum"] = index, total
        return index

    def _observe(
        self, state: dict[str, torch.Tensor], position: int, index: torch.Tensor, weight: torch.Tensor
    ) -> None:
        state["sum"] = state["sum"] + weight.sum(1)


@dataclasses.dataclass(frozen=True)
class Alisa(_Walking):
    """ALISA's sparse window attention (arXiv:2403.17312): half recent, half by attention of the last steps.

    Reads the last `top_k - top_k // 2` positions and, of the others, the `top_k // 2` with the largest sum of
    the weights that the last `n_recent` queries gave them (group-summed; a position not read gets 0). The
    first sums come from the dense prefill. Nothing is evicted for good, but a position without weight in the
    window cannot come back before its rivals have none.

    Transfer: 2 k d + 2 d + 2 S, counted as H2O's.
    """

    name: ClassVar[str] = "alisa"
    needs_history: ClassVar[bool] = True
    n_recent: int = dataclasses.field(default=32, metadata={"short": "n_recent"})

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_integer(self.name, "n_recent", self.n_recent, 1, checks.MAX_CAPACITY)

    @property
    def local(self) -> int:
        return self.top_k - self.top_k // 2

    def window(self) -> int | None:
        return self.local

    def _start(self, span: Span) -> dict[str, Any]:
        recent = span.history.recent_weights
        if recent is None:
            checks.fail(self.name, "history.recent_weights", "be recorded by the prefill", None)
        recent = recent[:, -self.n_recent :, : span.first]
        # A ring of rows, summed afresh at each step: a running sum would leave rounding where true zeros
        # belong.
        rows = torch.zeros(recent.shape[0], self.n_recent, span.seq_len)
        rows[:, : recent.shape[1], : span.first] = recent
        return {"rows": rows, "next": recent.shape[1] % self.n_recent}

    def _select(self, state: dict[str, Any], position: int) -> torch.Tensor:
        rows = state["rows"]
        if rows.shape[2] <= position:
            state["rows"] = rows = torch.nn.functional.pad(rows, (0, max(64, position + 1 - rows.shape[2])))
        oldest_local = max(0, position + 1 - self.local)
        local = torch.arange(oldest_local, position + 1).expand(rows.shape[0], -1)
        weight = rows[:, :, :oldest_local].sum(1)
        best = weight.topk(min(self.top_k // 2, oldest_local), dim=-1).indices
        return torch.cat([best, local], dim=1)

    def _observe(
        self, state: dict[str, Any], position: int, index: torch.Tensor, weight: torch.Tensor
    ) -> None:
        state["rows"][:, state["next"]].zero_().scatter_(1, index, weight.sum(1))
        state["next"] = (state["next"] + 1) % self.n_recent
