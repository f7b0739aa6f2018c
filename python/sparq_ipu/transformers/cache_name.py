# SPDX-License-Identifier: Apache-2.0
"""The name of the argument with the KV cache in transformers: `cache` from 5.24 on, `past_key_values` before.
Models of its newer releases take the older name too, and warn."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, Callable, Mapping

from transformers.modeling_outputs import BaseModelOutputWithPast

#: either name, the newer one first
NAMES = ("cache", "past_key_values")
#: that of this release, of arguments and of outputs
CACHE = next(n for n in NAMES if n in {field.name for field in dataclasses.fields(BaseModelOutputWithPast)})


def with_cache(cache: Any) -> dict[str, Any]:
    """The cache as an argument by name, of a model, of its `generate`, or of an output."""
    return {CACHE: cache}


def cache_name(forward: Callable[..., Any], given: Mapping[str, Any]) -> str:
    """The name of the cache in arguments of a forward pass: that which is given, else its parameter's."""
    for name in NAMES:
        if name in given:  # mostly: to ask a function for its parameters takes longer
            return name
    return next((name for name in NAMES if name in inspect.signature(forward).parameters), CACHE)


def cache_in(given: Mapping[str, Any]) -> Any:
    """The cache among arguments by name, or None."""
    return next((given[name] for name in NAMES if name in given), None)


def cache_of(output: Any) -> Any:
    """The cache of what a model returned, or its `generate`."""
    return getattr(output, CACHE)
