# SPDX-License-Identifier: Apache-2.0
"""What torch.compile must not trace."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])


def outside_graphs(function: _Function) -> _Function:
    """Decorator of functions that use NumPy: torch.compile breaks its graph there, or says it may not."""
    disable = getattr(getattr(torch, "compiler", None), "disable", None)  # torch 2.0 has no torch.compiler
    if disable is None:
        return function
    disabled: _Function = disable(function)
    return disabled
