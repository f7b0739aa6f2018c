# SPDX-License-Identifier: Apache-2.0
"""SparQ attention (arXiv:2312.04985) for Graphcore IPUs, and for machines without one.

    cache = sparq_ipu.KVCache(batch, n_kv_heads, head_dim, capacity, device="auto")
    cache.append(key, value)
    output = sparq_ipu.sparq_attention(query, cache, rank=32, top_k=128)

One decode step of attention reads a few bytes of the KV cache instead of all of it. Every device gives the
same bits: see docs/exactness.md. An argument that does not fit is refused before anything changes, by a
ValueError `<op>: <argument> must <rule>, got <value>`, wherever a docstring names no other error.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparq_ipu.attention import dense_attention, sparq_attention, window_attention
    from sparq_ipu.cache import KVCache
    from sparq_ipu.devices import available_devices
    from sparq_ipu.planning import plan
    from sparq_ipu.prompt import prompt_attention
    from sparq_ipu.tokens import append_and_attend
    from sparq_reference.settings import SparqSettings, WindowSettings

__version__ = "0.1.0"

__all__ = [
    "KVCache",
    "SparqSettings",
    "WindowSettings",
    "__version__",
    "append_and_attend",
    "available_devices",
    "dense_attention",
    "plan",
    "prompt_attention",
    "sparq_attention",
    "window_attention",
]


#: the module of each name, imported when it is first asked for: a command can be interrupted meanwhile
_MODULES = {
    "KVCache": "sparq_ipu.cache",
    **dict.fromkeys(("SparqSettings", "WindowSettings"), "sparq_reference.settings"),
    "append_and_attend": "sparq_ipu.tokens",
    "available_devices": "sparq_ipu.devices",
    **dict.fromkeys(("dense_attention", "sparq_attention", "window_attention"), "sparq_ipu.attention"),
    "plan": "sparq_ipu.planning",
    "prompt_attention": "sparq_ipu.prompt",
}
#: modules that are part of it without an import of their own
_ALSO = ("attention", "cache", "devices", "planning", "prompt", "tokens")


def __getattr__(name: str) -> Any:
    if name in _ALSO:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
