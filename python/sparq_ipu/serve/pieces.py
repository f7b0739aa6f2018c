# SPDX-License-Identifier: Apache-2.0
"""Dense attention of a piece of a prompt, with the same bits wherever the prompt is cut into pieces.

For bfloat16 that is `prompt_attention`, by its contract. For other types PyTorch's kernel is used as follows.

What is added in another order is rounded otherwise, so how a row is computed must follow from its position
alone. A prompt has blocks of `BLOCK` tokens, counted from its first, and blocks have cells of `CELL`; pieces
begin where a cell does. A token attends to all before its block, which needs no mask, and to its block
up to its cell, which needs a small one. Both are calls of PyTorch's kernel for CPUs, joined by the logarithms
of their sums. Heads that share keys are rows of one product.

The kernel is quicker with the queries of a whole block than with those of a cell. They go together where that
changes no bit, which is tried once.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from sparq_ipu.torch import prompt

#: tokens; PyTorch's kernel works on blocks of 32 to 256 queries, and of 512 keys
CELL, BLOCK = 128, 512

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
    if prompt.takes(query):
        return prompt.prompt_attention(query, key, value, scale)
    _, n_heads, n_tokens, head_dim = query.shape
    n_kv_heads, n_held = key.shape[1], key.shape[2] - n_tokens
    group_size = n_heads // n_kv_heads
    most = _most_tokens(n_kv_heads, group_size, head_dim, query.dtype)
    output = torch.empty(1, n_tokens, n_kv_heads, group_size, head_dim, dtype=query.dtype)

    def attended(first: int, last: int, keys: slice, mask: torch.Tensor | None = None) -> Any:
        """Of these tokens to those: output (1, n_kv_heads, group_size, n, head_dim), logarithms of sums."""
        rows = query[:, :, first:last].reshape(1, n_kv_heads, -1, head_dim)
        out, log_sum = _kernel(rows, key[:, :, keys], value[:, :, keys], attn_mask=mask, scale=scale)
        shape = 1, n_kv_heads, group_size, last - first
        return out.view(*shape, head_dim), log_sum.reshape(shape)

    begin = 0
    while begin < n_tokens:
        block = (n_held + begin) // BLOCK * BLOCK
        end = min(block + BLOCK - n_held, begin + most, n_tokens)
        if block:
            earlier, log_sum_before = attended(begin, end, slice(0, block))
        for first in range(begin, end, CELL):
            last = min(first + CELL, end)
            own = slice(block, n_held + last)
            mask = _causal(last - first, own.stop - own.start, group_size, query.dtype)
            result, log_sum = attended(first, last, own, mask)
            if block:
                cell = slice(first - begin, last - begin)
                # laid out alike in any piece, for PyTorch's loops round by the layout
                difference = (log_sum_before[:, :, :, cell] - log_sum).contiguous()
                weight = torch.sigmoid(difference)[..., None]
                result = torch.lerp(result.float(), earlier[:, :, :, cell].float(), weight)
            output[:, first:last] = result.permute(0, 3, 1, 2, 4)
        begin = end
    return output.view(1, n_tokens, n_heads, head_dim)


@functools.lru_cache(maxsize=None)
def _most_tokens(n_kv_heads: int, group_size: int, head_dim: int, dtype: torch.dtype) -> int:
    """How many tokens of a block may attend together: each as it would in its cell.

    Every key is there twice, with a value and its negative. So nothing is left of the sums but what was
    rounded on the way, and that differs where their order does.
    """
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, n_kv_heads, n, head_dim, generator=generator).to(dtype)
        for n in (group_size * BLOCK, 2 * BLOCK, 2 * BLOCK)
    )
    order = torch.randperm(BLOCK, generator=generator)
    key[:, :, BLOCK:], value[:, :, BLOCK:] = key[:, :, order], -value[:, :, order]
    heads = query.view(1, n_kv_heads, group_size, BLOCK, head_dim)

    def attended(tokens: slice) -> list[torch.Tensor]:
        rows = heads[:, :, :, tokens].reshape(1, n_kv_heads, -1, head_dim)
        return [x.reshape(*heads.shape[:3], -1) for x in _kernel(rows, key, value)]

    cells = [attended(slice(begin, begin + CELL)) for begin in range(0, BLOCK, CELL)]
    for n in range(2, BLOCK // CELL + 1):
        together = attended(slice(0, n * CELL))
        alone = (torch.cat(parts, 3) for parts in zip(*cells[:n]))
        if not all(torch.equal(one, other) for one, other in zip(together, alone)):
            return CELL
    return BLOCK


@functools.lru_cache(maxsize=16)
def _causal(n_tokens: int, n_keys: int, group_size: int, dtype: torch.dtype) -> torch.Tensor:
    """Of the last of so many keys to all of them, as rows of each head of a group: 0, or -infinity for later
    ones."""
    later = torch.full((n_tokens, n_keys), float("-inf")).triu(1 + n_keys - n_tokens)
    return later.repeat(group_size, 1).to(dtype)[None, None]
