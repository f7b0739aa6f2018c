# SPDX-License-Identifier: Apache-2.0
"""The key index of SparQ in torch: 8, 4 or 2 bits per number, by rule E9 of docs/exactness.md.

`sparq_reference.key_index` is the same arithmetic in NumPy, for one query. Here all queries of a span are
scored at once. The tensors are float32, and hold what the kernels would have in float16 or in integers:
codes, coefficients and their sums are equal to the reference bit for bit, and so is the score of a full
block. (A sum of integers below 2^24 is exact in float32, so a matrix product has no order to keep.)
"""

from __future__ import annotations

import dataclasses

import torch

from sparq_reference.key_index import coefficient_limit
from sparq_reference.numerics import BLOCK, HALF_MAX

from .base import Span


def to_half(tensor: torch.Tensor) -> torch.Tensor:
    """Float32 of the nearest float16: what a cache or a kernel is given. Overflow saturates."""
    limit = float(HALF_MAX)
    return tensor.clamp(-limit, limit).to(torch.float16).to(torch.float32)


@dataclasses.dataclass
class KeyIndex:
    """The full blocks of 64 positions of one layer's keys: key = low + step * code, about.

    low, step: (n_kv_heads, n_blocks, head_dim) float32, float16 numbers.
    code: (n_kv_heads, n_blocks, 64, head_dim) float32, integers in [0, 2^index_bits - 1].
    """

    low: torch.Tensor
    step: torch.Tensor
    code: torch.Tensor
    index_bits: int

    @classmethod
    def of(cls, key: torch.Tensor, index_bits: int) -> KeyIndex:
        """Index of the keys as a cache holds them, rounded to float16.

        key: (n_kv_heads, seq_len, head_dim) float32. Positions behind the last full block are not looked at.
        """
        n_kv_heads, seq_len, head_dim = key.shape
        n_blocks = seq_len // BLOCK
        blocks = to_half(key[:, : n_blocks * BLOCK]).reshape(n_kv_heads, n_blocks, BLOCK, head_dim)
        one, most = torch.tensor(1.0), torch.tensor(2.0**index_bits - 1)
        low, high = blocks.amin(2), blocks.amax(2)
        step = to_half((high - low) * (one / most))
        flat = step == 0
        inverse = one / torch.where(flat, one, step)
        # Where step is 0 all differences are below 2^-16, so the codes are 0 as they should.
        code = torch.round((blocks - low[:, :, None]) * inverse[:, :, None])
        return cls(low, step, torch.minimum(code, most), index_bits)

    @classmethod
    def of_span(cls, span: Span, index_bits: int) -> KeyIndex:
        """Index of a span's keys; that of the whole span is made once for its parts."""
        index = span.once(f"index of {index_bits} bits", lambda whole: cls.of(whole.key, index_bits))
        n_blocks = span.seq_len // BLOCK
        return cls(index.low[:, :n_blocks], index.step[:, :n_blocks], index.code[:, :n_blocks], index_bits)

    @property
    def n_positions(self) -> int:
        """Positions that the index has."""
        return self.code.shape[1] * BLOCK

    def coefficients(self, query: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The query as integers, by block.

        query: (n_kv_heads, group_size, n_queries, head_dim) float32, 0 but in `rank` components.
        Returns: (coefficient, unit). coefficient: (n_kv_heads, n_blocks, group_size, n_queries, head_dim)
            float32, integers; unit: the same without head_dim, what 1 of a total stands for.
        """
        limit = torch.tensor(float(coefficient_limit(self.index_bits, rank)))
        one = torch.tensor(1.0)
        weight = to_half(query)[:, None] * self.step[:, :, None, None]
        largest = weight.abs().amax(-1)
        nothing = largest == 0
        inverse = limit / torch.where(nothing, one, largest)
        coefficient = torch.round(weight * inverse[..., None])  # of nothing, every weight is 0
        return coefficient, largest * (one / limit)

    def totals(self, coefficient: torch.Tensor) -> torch.Tensor:
        """(n_kv_heads, n_blocks, group_size, n_queries, 64) float32, integers below 2^24: sums of coefficient
        times code."""
        n_kv_heads, n_blocks, group_size, n_queries, head_dim = coefficient.shape
        rows = coefficient.reshape(n_kv_heads, n_blocks, group_size * n_queries, head_dim)
        return (rows @ self.code.transpose(2, 3)).reshape(n_kv_heads, n_blocks, group_size, n_queries, BLOCK)

    def offsets(self, query: torch.Tensor) -> torch.Tensor:
        """(n_kv_heads, n_blocks, group_size, n_queries) float32: sum of query times low, by component,
        ascending."""
        query = to_half(query)[:, None]
        offset = torch.zeros(1)
        for c in range(query.shape[-1]):  # adding a component that is not selected, +0 or -0, changes no bit
            offset = offset + query[..., c] * self.low[:, :, None, None, c]
        return offset

    def scores(self, query: torch.Tensor, rank: int) -> torch.Tensor:
        """Approximate scores before the temperature; the query is rounded to float16.

        query: (n_kv_heads, group_size, n_queries, head_dim) float32, 0 but in `rank` components.
        Returns: (n_kv_heads, group_size, n_queries, n_positions) float32.
        """
        coefficient, unit = self.coefficients(query, rank)
        scores = unit[..., None] * self.totals(coefficient) + self.offsets(query)[..., None]
        return scores.permute(0, 2, 3, 1, 4).reshape(*query.shape[:3], self.n_positions)
