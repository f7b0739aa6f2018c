# SPDX-License-Identifier: Apache-2.0
"""Causal dense attention of the tokens of a prompt, for PyTorch tensors on the CPU."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, Sequence

import torch

from sparq_ipu.cache import KVCache
from sparq_ipu.torch.graphs import outside_graphs
from sparq_reference import numerics
from sparq_reference.prompt import check_blocks

if TYPE_CHECKING:
    from sparq_ipu.backends.cpu import CPUBackend

_HAS_KERNELS = importlib.util.find_spec("sparq_ipu._cpu") is not None


def takes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether `prompt_attention` can replace PyTorch's attention: there are kernels and no gradients."""
    head_dim = query.shape[-1]
    return (
        query.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and query.device.type == "cpu"
        and not (torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)))
        and head_dim % 8 == 0
        and head_dim <= 256
        and _HAS_KERNELS
    )


@outside_graphs
def prompt_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None = None,
    window: int = 0,
    starts: Sequence[int] = (),
    blocks: float = 0.0,
    blocks_from: int = 0,
) -> torch.Tensor:
    """`sparq_ipu.prompt.prompt_attention` of tensors: with integers for bfloat16, else in float32.

    Args:
        query: (batch, n_heads, n, head_dim) float32, float16 or bfloat16: of the last n positions.
        key, value: (batch, n_kv_heads, seq_len, head_dim) of the same dtype.

    Returns:
        (batch, n, n_heads, head_dim) of the same dtype, 0 where padding is. NaN and infinity are not refused.
    """
    from sparq_ipu import _cpu

    batch, n_heads, n, head_dim = query.shape
    key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (key, value))
    query, output = _ends(query, has_padding=any(starts))
    _cpu.prompt_attention(
        _name(query),
        _place(query),
        _place(key),
        _place(value),
        (batch, n_heads, key.shape[1], n, key.shape[2], head_dim),
        starts=starts,
        output=output.data_ptr(),
        **_settings(query, scale, window, blocks, blocks_from),
    )
    return output


@outside_graphs
def attend_cache(
    query: torch.Tensor,
    cache: KVCache,
    tokens: Sequence[tuple[int, int]],
    scale: float | None = None,
    window: int = 0,
    blocks: float = 0.0,
    blocks_from: int = 0,
) -> torch.Tensor:
    """`prompt_attention` to what a cache holds, without a copy of it; 0 where no text is.

    Args:
        query: as there; texts are anywhere in it.
        cache: on device "cpu"; each batch element is a text, which ends with its tokens of the query.
        tokens: of each text, the first of its tokens in the query and their number. Batch elements of the
            query are counted one after another.
    """
    from sparq_ipu import _cpu

    n_heads, n = query.shape[1:3]
    has_padding = sum(count for _, count in tokens) < query.shape[0] * n
    query, output = _ends(query, has_padding)
    backend: CPUBackend = cache.one_layer("prompt_attention")  # type: ignore[assignment]  # device "cpu"
    _cpu.prompt_attention_of_cache(
        backend.kernels,
        _name(query),
        _place(query),
        n_heads,
        n,
        tokens,
        output=output.data_ptr(),
        **_settings(query, scale, window, blocks, blocks_from),
    )
    return output


def _ends(query: torch.Tensor, has_padding: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The query as kernels can read it, and room for the output."""
    batch, n_heads, n, head_dim = query.shape
    make = torch.zeros if has_padding else torch.empty
    output = make(batch, n, n_heads, head_dim, dtype=query.dtype)
    return query if query.stride(-1) == 1 else query.contiguous(), output


def _settings(
    query: torch.Tensor, scale: float | None, window: int, blocks: float, blocks_from: int
) -> dict[str, Any]:
    factor = float(numerics.scale(query.shape[-1])) if scale is None else scale
    integers = query.dtype == torch.bfloat16
    return dict(
        integers=integers,
        scale=factor,
        window=window,
        blocks=check_blocks("prompt_attention", "blocks", blocks),
        blocks_from=blocks_from,
    )


def _name(query: torch.Tensor) -> str:
    return str(query.dtype).split(".")[1]


def _place(x: torch.Tensor) -> tuple[int, int, int, int]:
    """Address, and bytes from one batch element, head and token to the next."""
    batch, head, token = (stride * x.element_size() for stride in x.stride()[:3])
    return x.data_ptr(), batch, head, token
