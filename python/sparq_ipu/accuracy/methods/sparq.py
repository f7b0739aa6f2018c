# SPDX-License-Identifier: Apache-2.0
"""SparQ attention (arXiv:2312.04985, algorithm 1), the key selections of its figure 7a, and exact top-k."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import torch

from .base import HIDDEN, Method, Span, attend_to, check, check_count, top_positions
from .quantise import round_chunks

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
    index_bits: 16, or 8 / 4: bits of the K read for s_hat only, one scale per component and chunk of 64
        positions.

    Transfer: S r + 2 k d + 4 d; without the mean value 2 d less; the index counts b/16 per element plus one
        fp16 scale per 64.
    """

    name: ClassVar[str] = "sparq"
    chunk: ClassVar[int] = 64

    rank: int = dataclasses.field(default=32, metadata={"short": "r"})
    top_k: int = dataclasses.field(default=128, metadata={"short": "k"})
    n_local: int = dataclasses.field(default=-1, metadata={"short": "l"})
    mean_value_from: int = dataclasses.field(default=0, metadata={"short": "mean_from"})
    temperature: str = dataclasses.field(default="sparq", metadata={"short": "tau"})
    index_bits: int = dataclasses.field(default=16, metadata={"short": "index_bits"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.name, "rank", self.rank, 1)
        check_count(self.name, "top_k", self.top_k, 1)
        check_count(self.name, "n_local", self.n_local, -1, self.top_k)
        check_count(self.name, "mean_value_from", self.mean_value_from, -1)
        check(
            self.name,
            "temperature",
            self.temperature in TEMPERATURES,
            f"be one of {', '.join(TEMPERATURES)}",
            self.temperature,
        )
        check(self.name, "index_bits", self.index_bits in (4, 8, 16), "be 4, 8 or 16", self.index_bits)

    @property
    def local(self) -> int:
        return self.top_k // 4 if self.n_local < 0 else self.n_local

    def window(self) -> int | None:
        return self.local

    def approx_scores(self, span: Span) -> torch.Tensor:
        """(n_kv_heads, group_size, n_queries, seq_len) approximate scores before the softmax, future
        positions not yet hidden."""
        check_count(self.name, "rank", self.rank, 1, span.head_dim)
        magnitude = span.query.abs()
        used = top_positions(magnitude.sum(1), self.rank)[:, None]  # (n_kv_heads, 1, n_queries, head_dim)
        query = span.query * used
        scores = torch.einsum("hgnd,hsd->hgns", query, span.key)
        if self.index_bits < 16:
            rounded = torch.einsum(
                "hgnd,hsd->hgns", query, round_chunks(span.key, self.index_bits, self.chunk)
            )
            n_full = (span.positions() + 1) // self.chunk * self.chunk  # complete chunks at each query
            scores = torch.where(torch.arange(span.seq_len)[None, :] < n_full, rounded, scores)
        kept, total = (magnitude * used).sum(-1, keepdim=True), magnitude.sum(-1, keepdim=True)
        return scores / self._tau(span, kept, total)

    def _tau(self, span: Span, kept: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
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
        key = s_hat.sum(1)  # at most group_size; the last l positions go above it, the future below
        is_local = torch.arange(span.seq_len)[None, :] > span.positions() - self.local
        key.masked_fill_(is_local, span.query.shape[1] + 1.0).masked_fill_(~visible, -1.0)
        return top_positions(key, self.top_k) & visible, s_hat

    def _attend(self, span: Span) -> torch.Tensor:
        selected, s_hat = self.select(span)
        selected = selected[:, None]
        out = attend_to(span, selected)
        if self.mean_value_from < 0 or span.layer < self.mean_value_from:
            return out
        alpha = (s_hat * selected).sum(-1, keepdim=True)
        count = torch.arange(1, span.seq_len + 1)[:, None]
        mean = (span.value.cumsum(1) / count)[:, span.first :]  # running mean as each query sees it
        return alpha * out + (1 - alpha) * mean[:, None]

    def _index_elements(self, seq_len: int) -> float:
        scale = 1 / self.chunk if self.index_bits < 16 else 0.0
        return seq_len * self.rank * (self.index_bits / 16 + scale)

    def _cache_elements(self, seq_len: int, head_dim: int, group_size: int) -> tuple[float, float]:
        rows = (
            2 * min(self.top_k, seq_len) * head_dim + 2 * head_dim
        )  # selected rows, and the new one written
        mean = 0 if self.mean_value_from < 0 else 2 * head_dim  # read and written
        index = self._index_elements(seq_len)
        # A quantised index is a store of its own, so kv_bits does not shrink it a second time.
        return (rows + index, mean) if self.index_bits == 16 else (rows, mean + index)


@dataclasses.dataclass(frozen=True)
class Oracle(SparQ):
    """SparQ told the exact scores for free: the bound of figure 7a.

    `rank` and `temperature` are not used. Transfer: 2 k d + 4 d.
    """

    name: ClassVar[str] = "oracle"

    def approx_scores(self, span: Span) -> torch.Tensor:
        return span.scores()

    def _index_elements(self, seq_len: int) -> float:
        return 0.0


@dataclasses.dataclass(frozen=True)
class LowRank(SparQ):
    """SparQ with scores from a random rank-r projection of K: the baseline of figure 7a.

    s_hat = softmax((q P) . (K P)^T * (d / r) / sqrt(d)), P (head_dim, r) with orthonormal columns, one per
    layer and KV head, seeded; d / r makes the estimate of the dot product unbiased. The rest is SparQ.
    `temperature` is not used. Transfer: as SparQ.
    """

    name: ClassVar[str] = "low_rank"
    seed: int = dataclasses.field(default=0, metadata={"short": "seed"})

    def projection(self, layer: int, n_kv_heads: int, head_dim: int) -> torch.Tensor:
        """(n_kv_heads, head_dim, rank) float32."""
        check_count(self.name, "rank", self.rank, 1, head_dim)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + layer)
        noise = torch.randn(n_kv_heads, head_dim, self.rank, generator=generator, dtype=torch.float64)
        return torch.linalg.qr(noise).Q.to(torch.float32)

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
        check_count(self.name, "top_k", self.top_k, 1)

    def _attend(self, span: Span) -> torch.Tensor:
        scores = span.scores()
        key = torch.softmax(scores, dim=-1).sum(1).masked_fill_(~span.visible(), -1.0)
        selected = top_positions(key, self.top_k) & span.visible()
        return attend_to(span, selected[:, None], scores)

    def _cache_elements(self, seq_len: int, head_dim: int, group_size: int) -> tuple[float, float]:
        return float(seq_len * head_dim + min(self.top_k, seq_len) * head_dim + 2 * head_dim), 0.0
