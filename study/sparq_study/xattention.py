# SPDX-License-Identifier: Apache-2.0
"""XAttention for prompts (arXiv:2503.16428), by the rule of OpenVINO's CPU kernels, as PyTorch code.

Queries and keys are taken in strides. A sum along the antidiagonals of a stride estimates the scores of its
queries with its keys. Their softmax is summed over blocks. A block of queries reads the first block of keys,
its own, and those of the largest sums until all before them are at least `threshold` of the total.
"""

from __future__ import annotations

from typing import Any

import torch

BLOCK, STRIDE, THRESHOLD = 64, 8, 0.8


def chosen_blocks(query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
    """(n, d) and (n, d) of one head -> (blocks, blocks): whether a block of queries reads a block of keys."""
    blocks, strides = -(-len(query) // BLOCK), -(-len(query) // STRIDE)
    query, key = (
        torch.nn.functional.pad(x.float(), (0, 0, 0, blocks * BLOCK - len(x))).reshape(-1, STRIDE, x.shape[1])
        for x in (query, key)
    )
    scores = query.flip(1).flatten(1) @ key.flatten(1).T * (scale / STRIDE)
    hidden = torch.ones_like(scores, dtype=torch.bool).triu_(1)
    sums = scores.masked_fill_(hidden, -torch.inf).softmax(-1)
    sums[strides:] = 0  # padding
    sums = sums.reshape(blocks, BLOCK // STRIDE, blocks, BLOCK // STRIDE).sum((1, 3))
    always = torch.eye(blocks, dtype=torch.bool)
    always[:, 0] = True
    order = torch.where(always, torch.inf, sums).argsort(dim=-1, descending=True, stable=True)
    ranked = sums.gather(-1, order)
    read = ranked.cumsum(-1) - ranked < THRESHOLD * sums.sum(-1, keepdim=True)
    return (torch.zeros_like(always).scatter(-1, order, read) | always).tril()


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, read: torch.Tensor, scale: float
) -> Any:
    """(n, d) each, of one head, and `chosen_blocks` -> (n, d) float32."""
    outputs = []
    for i in range(len(read)):
        rows = query[i * BLOCK : (i + 1) * BLOCK].float()
        end = i * BLOCK + len(rows)
        columns = torch.cat(
            [torch.arange(b * BLOCK, min(b * BLOCK + BLOCK, end)) for b in read[i].nonzero()[:, 0].tolist()]
        )
        scores = rows @ key[columns].float().T * scale
        scores.masked_fill_(columns > torch.arange(i * BLOCK, end)[:, None], -torch.inf)
        outputs.append(scores.softmax(-1) @ value[columns].float())
    return torch.cat(outputs)


def register() -> str:
    """The name to give to `set_attn_implementation` of a model. A forward pass must have the whole text."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register("xattention", _attention)
    AttentionMaskInterface.register("xattention", sdpa_mask)
    return "xattention"


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    group = query.shape[1] // key.shape[1]
    heads = []
    for h, of_head in enumerate(query[0]):
        k, v = key[0, h // group], value[0, h // group]
        heads.append(attend(of_head, k, v, chosen_blocks(of_head, k, scaling), scaling))
    return torch.stack(heads, 1)[None].to(query.dtype), None
