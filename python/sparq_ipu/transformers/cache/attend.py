# SPDX-License-Identifier: Apache-2.0
"""Decode steps over the KVCache of a layer; a guard on what leaves autograd there."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sparq_ipu import KVCache
from sparq_ipu.attention import attention
from sparq_ipu.tokens import append_and_attend, one_by_one
from sparq_ipu.transformers.settings.layers import LayerSettings, dense_attention_of, dense_rows
from sparq_reference import checks


def attend(
    query: np.ndarray,
    cache: KVCache,
    settings: LayerSettings | None,
    window: int | None = None,
) -> np.ndarray:
    """Attention of query (batch, n_heads, head_dim); `dense_rows` are dense, over the window.

    Raises:
        ValueError: a row without any real token.
    """
    lengths = cache.lengths
    if np.count_nonzero(lengths) < len(lengths):
        raise ValueError(
            "SparqCache: attention_mask must leave a real token in every row before one is decoded, "
            f"got lengths {lengths.tolist()}"
        )
    sparq = None if settings is None else settings.attention
    is_dense, densely = dense_rows(settings, lengths.tolist(), window), dense_attention_of(window)
    if len(set(is_dense)) == 1:
        output = attention(query, cache, densely if is_dense[0] else sparq)
    else:
        output = np.empty_like(query)
        for each in (densely, sparq):
            rows = [row for row, dense in enumerate(is_dense) if dense == (each is densely)]
            if cache.device == "cpu":
                output[rows] = attention(query[rows], cache.rows(rows), each)
            else:  # its program attends in all rows
                output[rows] = attention(query, cache, each)[rows]
    return output


def attend_tokens(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    cache: KVCache,
    settings: LayerSettings | None,
    window: int | None = None,
) -> np.ndarray:
    """Append several tokens (batch, heads, n_tokens, head_dim), and attend from each as if it came alone, to
    the bit: (batch, n_tokens, n_heads, head_dim).

    Raises:
        ValueError: as `append_and_attend`; the cache is then unchanged.
    """
    if settings is None:
        output = append_and_attend(query, key, value, cache, dense_attention_of(window))
        return np.swapaxes(output, 1, 2)
    cache.check_tokens(key, value)
    if cache.check_finite:
        checks.check_finite("sparq_attention", "query", query)
    steps = one_by_one(query, key, value, cache)
    return np.stack([attend(token, cache, settings, window) for token in steps], axis=1)


def half_of(query: torch.Tensor, factor: float) -> np.ndarray:
    """The query as the kernels take it, who know 1/sqrt(head_dim) alone."""
    tokens = query.detach()
    if abs(factor - 1) > 1e-6:
        tokens = tokens.float() * factor
    half: np.ndarray = tokens.to(torch.float16).contiguous().numpy()
    return half


class _NoBackward(torch.autograd.Function):
    """The identity, on what was computed outside autograd. Without it, gradients would be silently wrong."""

    @staticmethod
    def forward(ctx: Any, result: torch.Tensor, *origins: torch.Tensor) -> torch.Tensor:
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> None:
        raise RuntimeError(
            "sparq_attention: model must be disabled, or called with use_cache=False, for gradients, "
            "got a backward pass through its float16 cache"
        )


def without_backward(result: torch.Tensor, *origins: torch.Tensor) -> torch.Tensor:
    """`result`, through which a backward pass raises if any of the tensors it came from wants a gradient.

    Raises:
        RuntimeError: in the backward pass.
    """
    if torch.is_grad_enabled() and any(origin.requires_grad for origin in origins):
        apply: Any = _NoBackward.apply  # torch gives it no types
        guarded: torch.Tensor = apply(result, *origins)
        return guarded
    return result
