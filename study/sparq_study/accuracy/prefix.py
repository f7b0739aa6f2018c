# SPDX-License-Identifier: Apache-2.0
"""A densely processed sequence, from which spans go on."""

from __future__ import annotations

import dataclasses

import torch

#: the last queries of a prompt, by which the components of a key index are chosen
LAST_QUERIES = 512


@dataclasses.dataclass
class LayerCache:
    """One layer's K and V as lists of pieces, with what stateful methods start from (see History; None if it
    was not recorded).

    magnitudes: (n_kv_heads, at most LAST_QUERIES, head_dim) |q| of the last queries, summed over the heads of
        the group.
    """

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    magnitudes: torch.Tensor
    weight_sum: torch.Tensor | None = None
    recent_weights: torch.Tensor | None = None


@dataclasses.dataclass
class Prefix:
    """A densely processed sequence: `length` tokens, one LayerCache per layer."""

    length: int
    layers: dict[int, LayerCache]
