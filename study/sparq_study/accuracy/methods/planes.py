# SPDX-License-Identifier: Apache-2.0
"""A key index of which a query reads the planes of bits that it needs."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from sparq_reference import checks, transfers
from sparq_reference.numerics import BLOCK

from .base import Span, top_positions
from .key_index import KeyIndex, to_half
from .sparq import SparQ, _in_full_blocks

STORED = 8  # planes of a component in the float model


@dataclasses.dataclass(frozen=True)
class Planes(SparQ):
    """SparQ with a key index in planes of bits: `bits` of them a position, dealt out by the query.

    A component is stored in planes, with low and step of each 64 positions as in E9 of docs/exactness.md. Of
    the `rank` components with the largest sum over heads of |q| times the size of a step, the query reads the
    planes that lower the error most: each further plane of a component halves it. What is not read counts as
    its middle. The idea is that of Fathom (arXiv:2609.17652), whose text was not at hand: no rule here is
    taken from it.

    index_bits: 8 or 4: so many planes, in the arithmetic of the contract (E12), where the size of a step is
        the largest so far. 16: a model of it in float32, with 8 planes and the mean step.

    Transfer: S (bits + rank / 2) / 16 + 2 k d + 4 d, positions behind the last full block as in SparQ.
    """

    name: ClassVar[str] = "planes"

    bits: int = dataclasses.field(default=64, metadata={"short": "bits"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_all_components()
        most = self.planes * self.rank
        checks.check_integer(self.name, "bits", self.bits, 1, most, f"[1, {self.planes} rank={most}]")

    @property
    def _ties_by_index(self) -> bool:
        return True  # few planes make equal scores

    @property
    def revision(self) -> int:
        return 1

    @property
    def planes(self) -> int:
        """Planes of a component."""
        return STORED if self.index_bits == 16 else self.index_bits

    def depths(self, span: Span, key_index: KeyIndex) -> torch.Tensor:
        """(n_kv_heads, n_queries, head_dim) float32: planes that are read of each component."""
        n_full = ((span.positions()[:, 0] + 1) // BLOCK).tolist()  # blocks at the time of each query
        weight = self._magnitude(span.query) * self._sizes(key_index.step)[:, n_full]
        offered = top_positions(weight, self.rank, lower_first=True)
        # What is not offered comes after all that is, also where that is 0.
        merit = weight.masked_fill(~offered, -1.0)[..., None] * 0.5 ** torch.arange(self.planes)
        read = top_positions(merit.flatten(-2), self.bits, lower_first=True)
        return read.reshape(merit.shape).sum(-1).float()

    def _magnitude(self, query: torch.Tensor) -> torch.Tensor:
        """(n_kv_heads, n_queries, head_dim): sum over the heads of |q|."""
        if self.index_bits == 16:
            return query.abs().sum(1)
        total = torch.zeros_like(query[:, 0])
        for head in to_half(query).abs().unbind(1):
            total = total + head
        return total

    def _sizes(self, step: torch.Tensor) -> torch.Tensor:
        """(n_kv_heads, n_blocks + 1, head_dim): the size of a step once 0, 1, ... blocks are full; 1 at 0."""
        # Of the mean the sum alone: all components have the same number of blocks.
        so_far = step.cumsum(1) if self.index_bits == 16 or step.shape[1] == 0 else step.cummax(1).values
        return torch.nn.functional.pad(so_far, (0, 0, 1, 0), value=1.0)

    @staticmethod
    def _bits(span: Span) -> torch.Tensor:
        """(n_kv_heads, n_positions, 8 head_dim) float32: each bit times the component's step."""
        index = KeyIndex.of_span(span, STORED)
        shifts = 2.0 ** torch.arange(STORED - 1, -1, -1)
        bits = torch.floor(index.code[..., None] / shifts) % 2 * index.step[:, :, None, :, None]
        return bits.flatten(-2).flatten(1, 2)

    def approx_scores(self, span: Span) -> torch.Tensor:
        self._check_rank(span.head_dim)
        key_index = KeyIndex.of_span(span, self.planes)
        end = key_index.n_positions
        depth = self.depths(span, key_index)
        query = span.query * (depth > 0)[:, None]
        if self.index_bits == 16:
            of_blocks = self.float_scores(span, query, key_index, depth[:, None])
        else:
            of_blocks = self.block_scores(query, key_index, depth)
        scores = torch.einsum("hgnd,hsd->hgns", query, span.key)
        scores[..., :end] = torch.where(_in_full_blocks(span, end), of_blocks, scores[..., :end])
        return scores / self._tau(span, (depth > 0)[:, None])

    def float_scores(
        self, span: Span, query: torch.Tensor, key_index: KeyIndex, depth: torch.Tensor
    ) -> torch.Tensor:
        """Scores of full blocks in float32, with the query as it is; depth (n_kv_heads, 1, n_queries, d)."""
        read = depth[..., None] > torch.arange(STORED)  # (n_kv_heads, 1, n_queries, d, plane)
        size = 2.0 ** torch.arange(STORED - 1, -1, -1)  # of a plane's bit
        middle = (~read * size / 2).sum(-1)  # what is not read counts as half of all its bits
        offset = torch.einsum("hgnd,hbd->hgnb", query, key_index.low)
        offset = offset + torch.einsum("hgnd,hbd->hgnb", query * middle, key_index.step)
        bits = span.once("planes", self._bits)[:, : key_index.n_positions]
        scores = torch.einsum("hgnx,hsx->hgns", (query[..., None] * read * size).flatten(-2), bits)
        return scores + offset.repeat_interleave(BLOCK, -1)

    def block_scores(self, query: torch.Tensor, key_index: KeyIndex, depth: torch.Tensor) -> torch.Tensor:
        """Scores of full blocks before the temperature, by the integers of the contract (E12).

        query: (n_kv_heads, group_size, n_queries, head_dim), 0 where depth (n_kv_heads, n_queries, head_dim)
            is.
        Returns: (n_kv_heads, group_size, n_queries, n_positions) float32.
        """
        depth = depth[:, None, None]
        coefficient, unit = key_index.coefficients(query, self.rank)
        total, rest = torch.zeros(1), key_index.code
        for plane in range(self.planes):
            size = 2.0 ** (self.planes - 1 - plane)
            bit = torch.floor(rest / size)
            rest = rest - bit * size
            of_plane = dataclasses.replace(key_index, code=bit).totals(coefficient * (depth > plane) * size)
            total = total + of_plane  # below 2^24: exact
        middle = (coefficient * (2.0 ** (self.planes - depth) - 1)).sum(-1)
        offset = key_index.offsets(query) + unit * 0.5 * middle
        scores = unit[..., None] * total + offset[..., None]
        return scores.permute(0, 2, 3, 1, 4).reshape(*query.shape[:3], key_index.n_positions)

    def _score_elements(self, seq_len: int) -> tuple[int, float]:
        scored = seq_len % BLOCK * self.rank
        scales = self.rank * transfers.SCALE_BYTES / BLOCK  # bytes a position
        return scored, seq_len // BLOCK * BLOCK * (self.bits / 8 + scales) / transfers.ELEMENT_BYTES
