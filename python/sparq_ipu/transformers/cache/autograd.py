# SPDX-License-Identifier: Apache-2.0
"""A guard on what leaves autograd at the float16 cache: a backward pass through it raises."""

from __future__ import annotations

from typing import Any

import torch


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
