# SPDX-License-Identifier: Apache-2.0
"""Functions that torch.compile must not trace."""

from __future__ import annotations

import functools
from typing import Any, Callable, TypeVar

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])


def outside_graphs(function: _Function) -> _Function:
    """Decorator of functions that use NumPy: torch.compile breaks its graph there, or fails."""
    disable = getattr(getattr(torch, "compiler", None), "disable", None)  # PopTorch's torch 2.0 has none
    if disable is None:
        return function
    disabled: _Function = disable(function)

    @functools.wraps(function)
    def outside(*args: Any, **kwargs: Any) -> Any:
        # What `disable` makes sets the compiler's state in every call, which takes longer than some layers.
        return (disabled if torch.compiler.is_compiling() else function)(*args, **kwargs)

    return outside  # type: ignore[return-value]
