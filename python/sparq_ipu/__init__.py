# SPDX-License-Identifier: Apache-2.0
"""SparQ attention (arXiv:2312.04985) for Graphcore IPUs, and for machines without one.

    cache = sparq_ipu.KVCache(batch, n_kv_heads, head_dim, capacity, device="auto")
    cache.append(key, value)
    output = sparq_ipu.sparq_attention(query, cache, rank=32, top_k=128)

One decode step of attention reads a few bytes of the KV cache instead of all of it. Every device gives the
same bits: see docs/exactness.md.
"""

from sparq_ipu.attention import dense_attention, sparq_attention, window_attention
from sparq_ipu.cache import KVCache
from sparq_ipu.devices import available_devices
from sparq_ipu.planning import plan
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
    "sparq_attention",
    "window_attention",
]
