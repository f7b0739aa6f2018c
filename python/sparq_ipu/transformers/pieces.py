# SPDX-License-Identifier: Apache-2.0
"""Dense attention of a piece of a prompt, with the same bits wherever the prompt is cut into pieces.

What is added in another order is rounded otherwise, so how a row is computed must follow from its position
alone. A prompt has cells of `CELL` tokens, counted from its first, and pieces begin where a cell does. A cell
attends to all that is before it, which needs no mask, and to itself, which needs a small one. Both are calls
of PyTorch's kernel for CPUs, always of the same shape at the same position. They are joined by the logarithms
of their sums. Heads that share keys are rows of one product.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

#: tokens; PyTorch's kernel works on blocks of 32 to 256 queries
CELL = 128

_kernel: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def attend_piece(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention of the last tokens of a text.

    Args:
        query: (1, n_heads, n_tokens, head_dim); before them are a multiple of CELL tokens.
        key, value: (1, n_kv_heads, seq_len, head_dim) of the dtype of the query, of all tokens.
        scale: of the scores.

    Returns:
        (1, n_tokens, n_heads, head_dim).
    """
    _, n_heads, n_tokens, head_dim = query.shape
    n_kv_heads, n_held = key.shape[1], key.shape[2] - n_tokens
    output = torch.empty(1, n_tokens, n_kv_heads, n_heads // n_kv_heads, head_dim, dtype=query.dtype)
    for begin in range(0, n_tokens, CELL):
        end = min(begin + CELL, n_tokens)
        rows = query[:, :, begin:end].reshape(1, n_kv_heads, -1, head_dim)
        own = slice(n_held + begin, n_held + end)
        mask = _causal(end - begin, n_heads // n_kv_heads, query.dtype)
        attended, log_sum = _kernel(rows, key[:, :, own], value[:, :, own], attn_mask=mask, scale=scale)
        if own.start:
            before = slice(0, own.start)
            earlier, log_sum_before = _kernel(rows, key[:, :, before], value[:, :, before], scale=scale)
            weight = torch.sigmoid(log_sum_before - log_sum)[..., None]
            attended = torch.lerp(attended.float(), earlier.float(), weight)
        output[:, begin:end] = attended.view(1, n_kv_heads, -1, end - begin, head_dim).permute(0, 3, 1, 2, 4)
    return output.view(1, n_tokens, n_heads, head_dim)


@functools.lru_cache(maxsize=8)
def _causal(n_tokens: int, group_size: int, dtype: torch.dtype) -> torch.Tensor:
    """Of so many tokens to themselves, as rows of each head of a group: 0, or -infinity for later ones."""
    later = torch.full((n_tokens, n_tokens), float("-inf")).triu(1)
    return later.repeat(group_size, 1).to(dtype)[None, None]
