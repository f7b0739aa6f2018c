# SPDX-License-Identifier: Apache-2.0
"""What methods that are calibrated know of a layer: keys and queries of a text that no task has."""

from __future__ import annotations

import dataclasses
import functools

import torch

#: hides a position from a softmax; finite, because a row of -inf gives NaN
HIDDEN = -1e30
#: positions that a query's pair of components and the query itself have in common, of so many best ones
_AGREE_ON = 64


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Keys and queries of one layer, after rotary embedding, as a dense run of the text has them.

    key: (n_kv_heads, seq_len, head_dim) float32.
    query: (n_kv_heads, group_size, n_queries, head_dim) float32, the last positions' queries.
    """

    key: torch.Tensor
    query: torch.Tensor

    @functools.cached_property
    def basis(self) -> torch.Tensor:
        """(n_kv_heads, head_dim, head_dim): columns are the principal axes of the keys, largest first."""
        centred = (self.key - self.key.mean(1, keepdim=True)).double()
        _, vectors = torch.linalg.eigh(centred.transpose(1, 2) @ centred)  # ascending
        basis: torch.Tensor = vectors.flip(-1).float()
        return basis

    @functools.cached_property
    def importance(self) -> torch.Tensor:
        """(n_kv_heads, head_dim): mean over queries and positions of |q k|, component by component."""
        return self.query.abs().mean((1, 2)) * self.key.abs().mean(1)

    @functools.cached_property
    def agreement(self) -> torch.Tensor:
        """(n_kv_heads, head_dim / 2): of each pair of components that the rotary embedding turns together (c
        and c + head_dim / 2), the share of the best positions that its part of the scores has in common with
        the whole, mean over the queries."""
        n_heads, _, n_queries, head_dim = self.query.shape
        seq_len = self.key.shape[1]
        future = torch.arange(seq_len)[None, :] > torch.arange(seq_len - n_queries, seq_len)[:, None]

        def best(scores: torch.Tensor) -> torch.Tensor:
            mask = torch.zeros_like(scores, dtype=torch.bool)
            index = scores.masked_fill(future, HIDDEN).topk(min(_AGREE_ON, seq_len), -1).indices
            return mask.scatter_(-1, index, True)

        whole = best(torch.einsum("hgnd,hsd->hgns", self.query, self.key))
        shares = []
        for pair in range(head_dim // 2):
            of_pair = [pair, pair + head_dim // 2]
            part = best(torch.einsum("hgnd,hsd->hgns", self.query[..., of_pair], self.key[..., of_pair]))
            shares.append((part & whole).sum(-1).float().mean((1, 2)))
        return torch.stack(shares, 1).reshape(n_heads, head_dim // 2) / min(_AGREE_ON, seq_len)
