# SPDX-License-Identifier: Apache-2.0
"""A key index of which a query reads the planes of bits that it needs."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from sparq_reference import checks, transfers
from sparq_reference.numerics import BLOCK

from .base import Span, top_positions
from .key_index import KeyIndex
from .sparq import SparQ, _in_full_blocks

STORED = 8  # planes of a component


@dataclasses.dataclass(frozen=True)
class Planes(SparQ):
    """SparQ with a key index in planes of bits: `bits` of them a position, dealt out by the query.

    A component is stored in 8 planes, with low and step of each 64 positions as in E9 of docs/exactness.md.
    Of the `rank` components with the largest sum over heads of |q| times the mean step so far, the query
    reads the planes that lower the error most: each further plane of a component halves it. What is not read
    counts as its middle. The idea is that of Fathom (arXiv:2609.17652), whose text was not at hand: no rule
    here is taken from it. `index_bits` is not used.

    Transfer: S (bits + rank / 2) / 16 + 2 k d + 4 d, positions behind the last full block as in SparQ.
    """

    name: ClassVar[str] = "planes"

    bits: int = dataclasses.field(default=64, metadata={"short": "bits"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_no_index()
        checks.check_integer(
            self.name, "bits", self.bits, 1, STORED * self.rank, f"[1, 8 rank={8 * self.rank}]"
        )

    @property
    def _ties_by_index(self) -> bool:
        return True  # few planes make equal scores

    def depths(self, span: Span, key_index: KeyIndex) -> torch.Tensor:
        """(n_kv_heads, n_queries, head_dim) float32: planes that are read of each component."""
        n_full = ((span.positions()[:, 0] + 1) // BLOCK).tolist()  # blocks at the time of each query
        totals = torch.nn.functional.pad(key_index.step.cumsum(1), (0, 0, 1, 0), value=1.0)
        # The mean up to a factor that all components have; without a block all steps count alike.
        weight = span.query.abs().sum(1) * totals[:, n_full]
        weight = weight * top_positions(weight, self.rank, lower_first=True)
        halved = weight[..., None] * 0.5 ** torch.arange(STORED)
        read = top_positions(halved.flatten(-2), self.bits, lower_first=True)
        return read.reshape(halved.shape).sum(-1).float()

    @staticmethod
    def _bits(span: Span) -> torch.Tensor:
        """(n_kv_heads, n_positions, 8 head_dim) float32: each bit times the component's step."""
        index = KeyIndex.of_span(span, STORED)
        shifts = 2.0 ** torch.arange(STORED - 1, -1, -1)
        bits = torch.floor(index.code[..., None] / shifts) % 2 * index.step[:, :, None, :, None]
        return bits.flatten(-2).flatten(1, 2)

    def approx_scores(self, span: Span) -> torch.Tensor:
        self._check_rank(span.head_dim)
        key_index = KeyIndex.of_span(span, STORED)
        end = key_index.n_positions
        depth = self.depths(span, key_index)[:, None]  # for all heads of the group
        query = span.query * (depth > 0)
        read = depth[..., None] > torch.arange(STORED)  # (n_kv_heads, 1, n_queries, d, plane)
        size = 2.0 ** torch.arange(STORED - 1, -1, -1)  # of a plane's bit
        middle = (~read * size / 2).sum(-1)  # what is not read counts as half of all its bits
        offset = torch.einsum("hgnd,hbd->hgnb", query, key_index.low)
        offset = offset + torch.einsum("hgnd,hbd->hgnb", query * middle, key_index.step)
        bits = span.once("planes", self._bits)[:, :end]
        scores = torch.einsum("hgnx,hsx->hgns", (query[..., None] * read * size).flatten(-2), bits)
        scores = scores + offset.repeat_interleave(BLOCK, -1)
        exact = torch.einsum("hgnd,hsd->hgns", query, span.key)
        exact[..., :end] = torch.where(_in_full_blocks(span, end), scores, exact[..., :end])
        return exact / self._tau(span, depth > 0)

    def _score_elements(self, seq_len: int) -> tuple[int, float]:
        scored = seq_len % BLOCK * self.rank
        scales = self.rank * transfers.SCALE_BYTES / BLOCK  # bytes a position
        return scored, seq_len // BLOCK * BLOCK * (self.bits / 8 + scales) / transfers.ELEMENT_BYTES
