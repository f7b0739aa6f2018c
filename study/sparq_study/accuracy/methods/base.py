# SPDX-License-Identifier: Apache-2.0
"""What every attention method shares: its inputs, its transfer formula, its text form.

A method answers one question, in torch fp32: given the queries of some decode steps and the KV cache each
of them sees, what does attention return, and how many elements does one step read and write?

Many steps are evaluated at once: query `i` of a span sits at position `first + i` and sees positions
`0 .. first + i`. One step is a span of one query, so step-by-step decoding runs the same code with the state
carried from call to call.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, ClassVar, TypeVar

import torch

from sparq_reference import checks, transfers

from .quantise import ChannelRange

#: hides a position from a softmax; finite, because a row of -inf gives NaN
HIDDEN = -1e30
# Bits of a stored element; 16 is not rounded at all.
STORED_BITS = (2, 4, 8, 16)
# Scores of a part of a span: 4 MiB of float32. But 8 queries at least: each part reads all keys.
_SCORES_IN_CACHE = 2**20
_LEAST_QUERIES = 8

_Made = TypeVar("_Made")


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Keys and queries of one layer, after rotary embedding, as a dense run of a text that no task has.

    key: (n_kv_heads, seq_len, head_dim) float32.
    query: (n_kv_heads, group_size, n_queries, head_dim) float32, the last positions' queries.
    """

    key: torch.Tensor
    query: torch.Tensor

    @functools.cached_property
    def importance(self) -> torch.Tensor:
        """(n_kv_heads, head_dim): mean over queries and positions of |q k|, component by component."""
        return self.query.abs().mean((1, 2)) * self.key.abs().mean(1)


class History:
    """What decode steps before the present one left behind, for one layer.

    weight_sum: (n_kv_heads, n_seen) attention weight that each position received from all queries so far,
        summed over the query heads of the group; None if it was not recorded.
    recent_weights: (n_kv_heads, n_recent, n_seen) the same for each of the last few queries, oldest first;
        None if it was not recorded.
    query_weight: (n_kv_heads, head_dim) float64, |q| summed over the query heads of the group, the mean of
        the last queries of the prompt; None if it was not recorded.
    state: whatever the method keeps between calls.
    indexed: (n_kv_heads, head_dim) bool, the components in the key index, of a method that chooses them.
    """

    def __init__(
        self,
        weight_sum: torch.Tensor | None = None,
        recent_weights: torch.Tensor | None = None,
        query_weight: torch.Tensor | None = None,
    ) -> None:
        self.weight_sum = weight_sum
        self.recent_weights = recent_weights
        self.query_weight = query_weight
        self.state: Any = None
        self.indexed: torch.Tensor | None = None
        self.key_range: ChannelRange | None = None
        self.value_range: ChannelRange | None = None


@dataclasses.dataclass
class Span:
    """Inputs of one layer for the last `n_queries` positions of a sequence.

    query: (n_kv_heads, group_size, n_queries, head_dim) float32, after rotary embedding.
    key, value: (n_kv_heads, seq_len, head_dim) float32, all positions up to that of the last query.
    layer: index of the layer, from 0.
    scale: factor of a dot product, 1 / sqrt(head_dim) in Llama.
    calibration: of this layer, for methods that need one.
    whole: the span that this one is a part of, if it is.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    layer: int
    scale: float
    history: History = dataclasses.field(default_factory=History)
    calibration: Calibration | None = None
    whole: Span | None = None
    kept: dict[str, Any] = dataclasses.field(default_factory=dict)

    def parts(self) -> list[Span]:
        """The span cut by queries into parts whose scores stay in a processor's cache."""
        heads, parts = self.query.shape[0] * self.query.shape[1], []
        step = max(_LEAST_QUERIES, _SCORES_IN_CACHE // (heads * self.seq_len))
        for start in range(0, self.n_queries, step):
            query = self.query[:, :, start : start + step]
            end = self.first + start + query.shape[2]
            key, value = self.key[:, :end], self.value[:, :end]
            parts.append(dataclasses.replace(self, query=query, key=key, value=value, whole=self, kept={}))
        return parts

    def with_rows(self, key: torch.Tensor, value: torch.Tensor) -> Span:
        """The same queries over other rows, of which nothing is known yet."""
        return dataclasses.replace(self, key=key, value=value, whole=None, kept={})

    def once(self, name: str, make: Callable[[Span], _Made]) -> _Made:
        """What is made of all keys or values of the whole span, once for all its parts."""
        whole = self.whole or self
        if name not in whole.kept:
            whole.kept[name] = make(whole)
        made: _Made = whole.kept[name]
        return made

    @property
    def n_queries(self) -> int:
        return self.query.shape[2]

    @property
    def seq_len(self) -> int:
        return self.key.shape[1]

    @property
    def head_dim(self) -> int:
        return self.key.shape[2]

    @property
    def first(self) -> int:
        """Position of the first query."""
        return self.seq_len - self.n_queries

    def positions(self) -> torch.Tensor:
        """(n_queries, 1) position of each query."""
        return torch.arange(self.first, self.seq_len)[:, None]

    def visible(self) -> torch.Tensor:
        """(n_queries, seq_len) bool: positions not after the query."""
        return torch.arange(self.seq_len)[None, :] <= self.positions()

    def scores(self) -> torch.Tensor:
        """(n_kv_heads, group_size, n_queries, seq_len) exact scaled scores, future positions hidden."""
        scores = torch.einsum("hgnd,hsd->hgns", self.query, self.key) * self.scale
        return scores.masked_fill_(~self.visible(), HIDDEN)


def attend_to(span: Span, selected: torch.Tensor, scores: torch.Tensor | None = None) -> torch.Tensor:
    """Exact softmax attention over the selected positions.

    selected: bool, broadcast against (n_kv_heads, group_size, n_queries, seq_len); must not reach into the
        future.
    Returns: (n_kv_heads, group_size, n_queries, head_dim).
    """
    scores = span.scores() if scores is None else scores
    weights = torch.softmax(scores.masked_fill(~selected, HIDDEN), dim=-1)
    return torch.einsum("hgns,hsd->hgnd", weights, span.value)


def top_positions(weight: torch.Tensor, count: int, lower_first: bool = False) -> torch.Tensor:
    """Bool mask of the `count` largest entries of the last axis (all if there are fewer).

    Which of several equal entries are taken is unspecified; with `lower_first`, those of lower index.
    """
    count = min(count, weight.shape[-1])
    mask = torch.zeros_like(weight, dtype=torch.bool)
    if count > 0:
        largest = weight.topk(count, dim=-1, sorted=False)
        if not lower_first:
            return mask.scatter_(-1, largest.indices, True)
        least = largest.values.amin(-1, keepdim=True)
        mask = weight > least
        equal = weight == least
        mask |= equal & (equal.cumsum(-1) <= count - mask.sum(-1, keepdim=True))
    return mask


def check_bits(op: str, argument: str, value: int) -> None:
    """Raise ValueError unless `value` is one of STORED_BITS."""
    if value not in STORED_BITS:
        checks.fail(op, argument, "be 4, 8 or 16", repr(value))


@dataclasses.dataclass(frozen=True)
class Method:
    """Base of all methods, and dense attention's common options.

    kv_bits: 16, or 8 / 4: K and V are stored with so many bits per element, channel-wise (ALISA's
        compression; see quantise.py).
    """

    name: ClassVar[str] = ""
    #: whether it starts from the attention weights of the prefill
    needs_history: ClassVar[bool] = False
    #: whether it needs what was found out about the layer beforehand, on another text
    needs_calibration: ClassVar[bool] = False

    kv_bits: int = dataclasses.field(default=16, metadata={"short": "kv_bits"})

    def __post_init__(self) -> None:
        check_bits(self.name, "kv_bits", self.kv_bits)

    def attend(self, span: Span) -> torch.Tensor:
        """Attention output of every query of the span.

        Returns: (n_kv_heads, group_size, n_queries, head_dim) float32. Updates span.history.
        """
        if self.kv_bits < 16:
            history = span.history
            if history.key_range is None or history.value_range is None:
                # Ranges are fixed by what was there before the first decode step; later values are clamped
                # into them.
                history.key_range = ChannelRange.of(span.key[:, : span.first], self.kv_bits)
                history.value_range = ChannelRange.of(span.value[:, : span.first], self.kv_bits)
            span = span.with_rows(history.key_range.round(span.key), history.value_range.round(span.value))
        return self._attend(span)

    def _attend(self, span: Span) -> torch.Tensor:
        raise NotImplementedError

    def transfer(self, seq_len: int, head_dim: int) -> float:
        """fp16 elements read and written per KV head and decode step; one element of b bits counts b/16.

        The query and the output are left out, as in the paper (they do not depend on the cache).
        """
        cached, other = self._cache_elements(seq_len, head_dim)
        return cached * self.kv_bits / 16 + other

    def _cache_elements(self, seq_len: int, head_dim: int) -> tuple[float, float]:
        """(elements of K and V as cached, other elements) of one step, K and V counted at 16 bits.

        The sum is a formula of `sparq_reference.transfers`. It is in two parts because `kv_bits` shrinks the
        first one only.
        """
        raise NotImplementedError

    def compression(self, seq_len: int, head_dim: int) -> float:
        """Elements that dense fp16 attention moves, divided by this method's."""
        dense = transfers.dense_elements(seq_len, head_dim)
        return dense / self.transfer(seq_len, head_dim)

    def matched(self, other: Method, seq_len: int, head_dim: int) -> Method:
        """This method with the largest top_k whose transfer does not exceed that of `other`.

        Raises: ValueError if the method has no top_k, or if even its smallest costs more.
        """
        if not hasattr(self, "top_k"):
            checks.fail(self.name, "top_k", "be a parameter of a matched method", None)
        budget = other.transfer(seq_len, head_dim)
        low, high = 1, seq_len
        found: Method | None = None
        while low <= high:
            middle = (low + high) // 2
            try:
                candidate = dataclasses.replace(self, top_k=middle)  # type: ignore[call-arg]
            except ValueError:  # fewer than the method's own parts (sinks): any larger top_k may still fit
                low = middle + 1
                continue
            if candidate.transfer(seq_len, head_dim) <= budget:
                found, low = candidate, middle + 1
            else:
                high = middle - 1
        if found is None:
            checks.fail(self.name, "transfer", f"fit the {budget:.0f} elements of {other}", None)
        return found

    def window(self) -> int | None:
        """Last positions that the method always reads (where a needle would be found without any selection),
        None if all."""
        return 0

    def __str__(self) -> str:
        parts = []
        common = dataclasses.fields(Method)
        own = dataclasses.fields(self)[len(common) :]
        for field in (*own, *common):
            value = getattr(self, field.name)
            if value != field.default:
                parts.append(f"{field.metadata['short']}={value}")
        return self.name + (":" + ",".join(parts) if parts else "")


@dataclasses.dataclass(frozen=True)
class Dense(Method):
    """Softmax attention over every cached position. Transfer: 2 S d + 2 d."""

    name: ClassVar[str] = "dense"

    def _attend(self, span: Span) -> torch.Tensor:
        return attend_to(span, span.visible())

    def _cache_elements(self, seq_len: int, head_dim: int) -> tuple[float, float]:
        return transfers.dense_elements(seq_len, head_dim), 0

    def window(self) -> int | None:
        return None
