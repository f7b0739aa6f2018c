# SPDX-License-Identifier: Apache-2.0
"""SparQ attention (arXiv:2312.04985) for Graphcore IPUs, and for machines without one.

    cache = sparq_ipu.KVCache(batch, n_kv_heads, head_dim, capacity, device="auto")
    cache.append(key, value)
    output = sparq_ipu.sparq_attention(query, cache, rank=32, top_k=128)

One decode step of attention reads a few bytes of the KV cache instead of all of it. Every device gives the
same bits: see docs/exactness.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparq_ipu.attention import dense_attention, sparq_attention, window_attention
from sparq_ipu.cache import KVCache
from sparq_ipu.devices import available_devices
from sparq_ipu.prompt import prompt_attention
from sparq_ipu.tokens import append_and_attend
from sparq_reference.settings import SparqSettings, WindowSettings

if TYPE_CHECKING:
    from sparq_ipu.planning import plan

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


def __getattr__(name: str) -> Any:
    if name not in ("plan", "planning"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import sparq_ipu.planning as planning  # when it is first asked for: who runs attention needs none of it

    return planning if name == "planning" else planning.plan


def __dir__() -> list[str]:
    return [*globals(), "plan"]
