# SPDX-License-Identifier: Apache-2.0
"""SparQ attention (arXiv:2312.04985, algorithm 1), the key selections of its figure 7a, and exact top-k."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Mapping

import torch

from sparq_reference import checks, component_order, transfers
from sparq_reference.numerics import BLOCK
from sparq_reference.settings import SparqSettings

from .base import HIDDEN, Method, Span, attend_to, check_bits, top_positions
from .key_index import KeyIndex
from .rows import ROWS, as_held, scales_of_row

TEMPERATURES = ("sparq", "sqrt_d", "sqrt_r", "none")


@dataclasses.dataclass(frozen=True)
class SparQ(Method):
    """Read K along the `rank` largest query components, then K and V of the `top_k` best positions.

    For the query heads h that share a KV head, with S visible positions (r = rank, k = top_k, l = n_local):

        i1 = the r components with the largest sum over h of |q[h, c]|
        s_hat[h] = softmax(q[h, i1] . K[:, i1]^T / tau[h])
        i2 = the last l positions and the k - l others with the largest sum over h of s_hat[h]
        alpha[h] = sum s_hat[h, i2]
        y[h] = alpha[h] * softmax(q[h] . K[i2]^T / sqrt(d)) . V[i2] + (1 - alpha[h]) * mean(V)

    rank, top_k, n_local: as above; n_local -1 means top_k // 4.
    mean_value_from: first layer that blends in the mean value; 0 = every layer (the paper), -1 = none (alpha
        = 1).
    temperature: tau. "sparq": sqrt(d * sum|q[i1]| / sum|q|), algorithm 1; "sqrt_d", "sqrt_r"; "none"
        = 1 (figure 7b).
    index_bits: 16, or 8 / 4: bits per element of the key index, the K[:, i1] that s_hat is made from. Below
        16 it is a store of its own beside K, of full blocks of 64 positions, with two fp16 numbers (low,
        step) per component and block. Its arithmetic is that of the kernels (docs/exactness.md, E9): integers
        made of K and of the query, both rounded to fp16 first. Positions behind the last full block are
        scored from K.
    rows: how rows of K and V are stored: "fp16", or "int8" (row_bits=8 of a cache, docs/exactness.md, E10),
        where everything is made from the rounded rows.
    index_components: above 0, i1 is of so many components alone: those that the key index has. They are
        chosen once, for each layer and KV head, from the keys and the last queries of the prompt
        (`sparq_reference.component_order.by_prompt`).

    Transfer: S r + 2 k d + 4 d; without the mean value 2 d less; with a key index of b bits each position of
        a full block counts r b/16 + 2 r/64 in place of r; with rows of 8 bits 2 k d is halved, and each
        selected row counts its scales, d/8.

    These are not the settings of the device kernels (`sparq_reference.settings.SparqSettings`, which
    `sparq_attention` and `transformers.enable` take):

        here              there             difference
        n_local           n_local           there the number itself, 0 by default; -1 is an error
        mean_value_from   mean_value        here the index of a layer, there True or False, for each layer
        temperature       -                 kernels have "sparq" only
        index_bits        index_bits        an option of the cache there (`settings.CacheSpec`)
        index_components  index_components  the same; and there keys and queries come with their components in
                                            that order, here they are chosen where they are

    The text form (`sparq:r=8,k=64`) keeps these meanings because published results are keyed by it.
    `from_settings` is the method that measures given settings of the kernels.
    """

    name: ClassVar[str] = "sparq"

    rank: int = dataclasses.field(default=32, metadata={"short": "r"})
    top_k: int = dataclasses.field(default=128, metadata={"short": "k"})
    n_local: int = dataclasses.field(default=-1, metadata={"short": "l"})
    mean_value_from: int = dataclasses.field(default=0, metadata={"short": "mean_from"})
    temperature: str = dataclasses.field(default="sparq", metadata={"short": "tau"})
    index_bits: int = dataclasses.field(default=16, metadata={"short": "index_bits"})
    rows: str = dataclasses.field(default="fp16", metadata={"short": "rows"})
    index_components: int = dataclasses.field(default=0, metadata={"short": "components"})

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_integer(self.name, "rank", self.rank, 1, checks.MAX_CAPACITY)
        top_k = checks.check_integer(self.name, "top_k", self.top_k, 1, checks.MAX_CAPACITY)
        checks.check_integer(self.name, "n_local", self.n_local, -1, top_k, f"[-1, top_k={top_k}]")
        checks.check_integer(self.name, "mean_value_from", self.mean_value_from, -1, checks.MAX_CAPACITY)
        if self.temperature not in TEMPERATURES:
            rule = f"be one of {', '.join(TEMPERATURES)}"
            checks.fail(self.name, "temperature", rule, repr(self.temperature))
        check_bits(self.name, "index_bits", self.index_bits)
        if self.rows not in ROWS:
            checks.fail(self.name, "rows", f"be one of {', '.join(ROWS)}", repr(self.rows))
        self._check_components(checks.MAX_CAPACITY, f"[0, {checks.MAX_CAPACITY}]")

    @classmethod
    def from_settings(
        cls,
        *,
        rank: int,
        top_k: int,
        n_local: int = 0,
        mean_value: bool = True,
        index_bits: int = 16,
        index_components: int = 0,
        layers: Mapping[int, Mapping[str, Any] | None] | None = None,
    ) -> SparQ:
        """The method that measures what `sparq_ipu.transformers.enable(model, **settings)` runs.

        index_bits, index_components: of the cache.
        layers: as there, as far as `mean_value_from` can say it: `{"mean_value": False}` for each of the
            first layers, or nothing.
        Raises: ValueError for other layers, or a setting out of range.
        """
        op = f"{cls.name}: from_settings"
        settings = SparqSettings(rank, top_k, n_local, mean_value, op=op)
        check_bits(op, "index_bits", index_bits)
        layers = layers or {}
        if layers != {i: {"mean_value": False} for i in range(len(layers))}:
            rule = 'be {"mean_value": False} for each of the first layers, or empty'
            checks.fail(op, "layers", rule, layers)
        return cls(
            rank=settings.rank,
            top_k=settings.top_k,
            n_local=-1 if settings.n_local == settings.top_k // 4 else settings.n_local,  # the shorter text
            mean_value_from=len(layers) if settings.mean_value else -1,
            index_bits=index_bits,
            index_components=index_components,
        )

    @property
    def local(self) -> int:
        """How many of the last positions are always selected: what the kernels call n_local."""
        return self.top_k // 4 if self.n_local < 0 else self.n_local

    def _check_rank(self, head_dim: int) -> None:
        checks.check_integer(self.name, "rank", self.rank, 1, head_dim, f"[1, head_dim={head_dim}]")

    def _check_components(self, most: int, interval: str) -> None:
        number = checks.check_integer(self.name, "index_components", self.index_components, 0, most, interval)
        if number % checks.HEAD_DIM_MULTIPLE:
            rule = f"be a multiple of {checks.HEAD_DIM_MULTIPLE}"
            checks.fail(self.name, "index_components", rule, number)
        if number:
            checks.check_rank(self.name, self.rank, most, number)

    def _check_all_components(self) -> None:
        if self.index_components:
            rule = "be 0, as the query does not choose among components of a key index"
            checks.fail(self.name, "index_components", rule, self.index_components)

    def _check_no_index(self) -> None:
        if self.index_bits != 16:
            rule = "be 16, as scores are not made from a key index"
            checks.fail(self.name, "index_bits", rule, self.index_bits)

    def window(self) -> int | None:
        return self.local

    def approx_scores(self, span: Span) -> torch.Tensor:
        """(n_kv_heads, group_size, n_queries, seq_len) approximate scores before the softmax, future
        positions not yet hidden."""
        self._check_rank(span.head_dim)
        used = self.components(span)[:, None]
        query = span.query * used
        scores = torch.einsum("hgnd,hsd->hgns", query, span.key)
        if self.index_bits < 16:
            key_index = KeyIndex.of_span(span, self.index_bits)
            end = key_index.n_positions
            indexed = _in_full_blocks(span, end)
            scores[..., :end] = torch.where(indexed, key_index.scores(query, self.rank), scores[..., :end])
        return scores / self._tau(span, used)

    def components(self, span: Span) -> torch.Tensor:
        """(n_kv_heads, n_queries, head_dim) bool: the components that score positions."""
        magnitude = span.query.abs().sum(1)
        if self.index_components:
            magnitude = magnitude.masked_fill(~self.indexed(span)[:, None], -1.0)
        return top_positions(magnitude, self.rank)

    def indexed(self, span: Span) -> torch.Tensor:
        """(n_kv_heads, head_dim) bool: the components that the key index has, by the prompt."""
        history = span.history
        if history.indexed is None:
            self._check_components(span.head_dim, f"[0, head_dim={span.head_dim}]")
            if history.query_weight is None:
                checks.fail(self.name, "history.query_weight", "be recorded by the prefill", None)
            # Later keys do not count: in a cache the order is settled when the prompt has been processed.
            order = component_order.by_prompt(
                history.query_weight[None, :, None].numpy(), span.key[None, :, : span.first].numpy()
            )
            first = torch.from_numpy(order[0, :, : self.index_components])
            indexed = torch.zeros(span.key.shape[0], span.head_dim, dtype=torch.bool)
            history.indexed = indexed.scatter_(1, first, True)
        return history.indexed

    def _tau(self, span: Span, used: torch.Tensor) -> torch.Tensor:
        """(n_kv_heads, group_size, n_queries, 1), of the components that score positions."""
        magnitude = span.query.abs()
        kept, total = (magnitude * used).sum(-1, keepdim=True), magnitude.sum(-1, keepdim=True)
        if self.temperature == "sparq":
            # q = 0 along i1: every score is 0 whatever the temperature.
            share = torch.where(kept > 0, kept / total, torch.ones_like(kept))
            return share.sqrt() / span.scale
        fixed = {"sqrt_d": 1 / span.scale, "sqrt_r": math.sqrt(self.rank), "none": 1.0}[self.temperature]
        return torch.full_like(kept, fixed)

    def select(self, span: Span) -> tuple[torch.Tensor, torch.Tensor]:
        """Steps 1 and 2's choice: (selected, s_hat).

        selected: (n_kv_heads, n_queries, seq_len) bool; s_hat: (n_kv_heads, group_size, n_queries, seq_len).
        """
        visible = span.visible()
        s_hat = torch.softmax(self.approx_scores(span).masked_fill_(~visible, HIDDEN), dim=-1)
        weight = s_hat.sum(1)  # at most group_size; the last l positions go above it, the future below
        is_local = torch.arange(span.seq_len)[None, :] > span.positions() - self.local
        weight.masked_fill_(is_local, span.query.shape[1] + 1.0).masked_fill_(~visible, -1.0)
        return top_positions(weight, self.top_k, lower_first=self._ties_by_index) & visible, s_hat

    @property
    def _ties_by_index(self) -> bool:
        # Few bits make equal scores; then the order is that of the kernels, by lower index.
        return self.index_bits < 16

    def _attend(self, span: Span) -> torch.Tensor:
        if self.index_components:
            self.indexed(span)  # by the keys before they are rounded
        if self.rows == "int8":
            span = span.with_rows(as_held(span.key), as_held(span.value))
        selected, s_hat = self.select(span)
        selected = selected[:, None]
        out = attend_to(span, selected)
        if self.mean_value_from < 0 or span.layer < self.mean_value_from:
            return out
        alpha = (s_hat * selected).sum(-1, keepdim=True)
        mean = span.once("mean_value", _running_mean)[:, span.first : span.seq_len]  # as each query sees it
        return alpha * out + (1 - alpha) * mean[:, None]

    def _score_elements(self, seq_len: int) -> tuple[int, float]:
        """(elements of K read for scores as K is cached, elements of a key index beside K)."""
        if self.index_bits == 16:
            return seq_len * self.rank, 0
        scored = seq_len % BLOCK * self.rank  # the open block
        index = transfers.index_bytes(seq_len, self.rank, self.index_bits) / transfers.ELEMENT_BYTES
        return scored, index - scored

    def _cache_elements(self, seq_len: int, head_dim: int) -> tuple[float, float]:
        scored, key_index = self._score_elements(seq_len)
        n_rows = min(self.top_k, seq_len)
        elements = transfers.sparq_elements(seq_len, head_dim, 0, n_rows) + scored
        if self.rows != "fp16":
            elements += n_rows * (scales_of_row(head_dim) - head_dim)
        # Equation 11 in two parts, with what the paper does not have. The mean value row, read and written,
        # keeps its 16 bits, and is left out with the mean value. A key index of few bits is a store of its
        # own, so kv_bits does not shrink it a second time.
        mean_value = 2 * head_dim
        return elements - mean_value, key_index + (0 if self.mean_value_from < 0 else mean_value)


def _running_mean(span: Span) -> torch.Tensor:
    """(n_kv_heads, seq_len, head_dim): the mean of the values up to each position."""
    return span.value.cumsum(1) / torch.arange(1, span.seq_len + 1)[:, None]


def _in_full_blocks(span: Span, end: int) -> torch.Tensor:
    """(n_queries, end) bool: positions in blocks that are full at the time of each query."""
    return torch.arange(end)[None, :] < (span.positions() + 1) // BLOCK * BLOCK


@dataclasses.dataclass(frozen=True)
class Oracle(SparQ):
    """SparQ told the exact scores for free: the bound of figure 7a.

    `rank` and `temperature` are not used; there is no key index to have fewer bits. Transfer: 2 k d + 4 d.
    """

    name: ClassVar[str] = "oracle"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_no_index()
        self._check_all_components()

    def approx_scores(self, span: Span) -> torch.Tensor:
        return span.scores()

    def _score_elements(self, seq_len: int) -> tuple[int, float]:
        return 0, 0  # its scores are free


@dataclasses.dataclass(frozen=True)
class LowRank(SparQ):
    """SparQ with scores from a random rank-r projection of K: the baseline of figure 7a.

    s_hat = softmax((q P) . (K P)^T * (d / r) / sqrt(d)), P (head_dim, r) with orthonormal columns, one per
    layer and KV head, seeded; d / r makes the estimate of the dot product unbiased. The rest is SparQ.
    `temperature` is not used; a key index of fewer bits is not defined. Transfer: as SparQ.
    """

    name: ClassVar[str] = "low_rank"
    seed: int = dataclasses.field(default=0, metadata={"short": "seed"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_no_index()
        self._check_all_components()

    def projection(self, layer: int, n_kv_heads: int, head_dim: int) -> torch.Tensor:
        """(n_kv_heads, head_dim, rank) float32."""
        self._check_rank(head_dim)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + layer)
        noise = torch.randn(n_kv_heads, head_dim, self.rank, generator=generator, dtype=torch.float64)
        projection: torch.Tensor = torch.linalg.qr(noise).Q
        return projection.to(torch.float32)

    def approx_scores(self, span: Span) -> torch.Tensor:
        projection = self.projection(span.layer, span.key.shape[0], span.head_dim)
        query = torch.einsum("hgnd,hdr->hgnr", span.query, projection)
        key = torch.einsum("hsd,hdr->hsr", span.key, projection)
        return torch.einsum("hgnr,hsr->hgns", query, key) * (span.scale * span.head_dim / self.rank)


@dataclasses.dataclass(frozen=True)
class TopK(Method):
    """Exact top-k, as in FlexGen: all of K, then V of the k best positions by the group sum of weights.

    top_k: positions read from V; softmax is renormalised over them. Transfer: S d + k d + 2 d.
    """

    name: ClassVar[str] = "flexgen"
    top_k: int = dataclasses.field(default=128, metadata={"short": "k"})

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_integer(self.name, "top_k", self.top_k, 1, checks.MAX_CAPACITY)

    def _attend(self, span: Span) -> torch.Tensor:
        scores = span.scores()
        weight = torch.softmax(scores, dim=-1).sum(1).masked_fill_(~span.visible(), -1.0)
        selected = top_positions(weight, self.top_k) & span.visible()
        return attend_to(span, selected[:, None], scores)

    def _cache_elements(self, seq_len: int, head_dim: int) -> tuple[float, float]:
        return head_dim * (seq_len + min(self.top_k, seq_len) + 2), 0  # appendix G: all keys, some values


@dataclasses.dataclass(frozen=True)
class DoubleSparsity(SparQ):
    """Channels fixed in advance by their mean |q k| (arXiv:2408.07092).

    The `rank` channels of each KV head with the largest mean |q k| of a calibration text score all positions;
    index_bits=4 is the paper's label cache of 4 bits, with our scale for each 64 positions. Selection and
    attention are SparQ's without the mean value. Transfer: as SparQ.
    """

    name: ClassVar[str] = "double_sparsity"
    needs_calibration: ClassVar[bool] = True
    mean_value_from: int = dataclasses.field(default=-1, metadata={"short": "mean_from"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_all_components()

    def components(self, span: Span) -> torch.Tensor:
        if span.calibration is None:
            checks.fail(self.name, "calibration", "be given", None)
        fixed = top_positions(span.calibration.importance, self.rank, lower_first=True)
        return fixed[:, None].expand(-1, span.n_queries, -1)

    @property
    def _ties_by_index(self) -> bool:
        return self.index_bits < 16 or self.kv_bits < 16  # the same few numbers score every query
