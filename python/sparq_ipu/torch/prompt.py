# SPDX-License-Identifier: Apache-2.0
"""Causal dense attention of the tokens of a prompt, for PyTorch tensors on the CPU."""

from __future__ import annotations

import importlib.util
from typing import Sequence

import torch

from sparq_ipu.torch.graphs import outside_graphs
from sparq_reference import numerics

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
) -> torch.Tensor:
    """`sparq_ipu.prompt.prompt_attention` of tensors: with integers for bfloat16, else in float32.

    Args:
        query: (batch, n_heads, n, head_dim) float32, float16 or bfloat16: of the last n positions.
        key, value: (batch, n_kv_heads, seq_len, head_dim) of the same dtype.
        scale, window, starts: as there.

    Returns:
        (batch, n, n_heads, head_dim) of the same dtype, 0 where padding is. NaN and infinity are not refused.
    """
    from sparq_ipu import _cpu

    batch, n_heads, n, head_dim = query.shape
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    make = torch.zeros if any(starts) else torch.empty
    output = make(batch, n, n_heads, head_dim, dtype=query.dtype)
    _cpu.prompt_attention(
        str(query.dtype).split(".")[1],
        _place(query),
        _place(key),
        _place(value),
        (batch, n_heads, key.shape[1], n, key.shape[2], head_dim),
        integers=query.dtype == torch.bfloat16,
        scale=float(numerics.scale(head_dim)) if scale is None else scale,
        window=window,
        starts=starts,
        output=output.data_ptr(),
    )
    return output


def _place(x: torch.Tensor) -> tuple[int, int, int, int]:
    """Address, and bytes from one batch element, head and token to the next."""
    batch, head, token = (stride * x.element_size() for stride in x.stride()[:3])
    return x.data_ptr(), batch, head, token
