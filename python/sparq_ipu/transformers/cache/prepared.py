# SPDX-License-Identifier: Apache-2.0
"""The interface of caches that know their tokens before the model runs."""

from __future__ import annotations

from transformers.cache_utils import Cache


class PreparedCache(Cache):
    """A cache for one forward pass; its maker has announced the tokens to its layers.

    The hooks of an enabled model announce tokens to any other cache, and nothing to this one.
    """
