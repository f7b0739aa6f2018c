# SPDX-License-Identifier: Apache-2.0
"""The PopART operators (poplar_ops/popart) as Python calls them: their names and attributes.

The settings and the options of the cache are attributes, with the names, types, limits and defaults of
`SparqSettings`, `CacheSpec` and `DeviceOptions`. The operators check the types and shapes of their tensors.

Needs neither torch nor PopTorch.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from sparq_ipu.device_options import DeviceOptions, check_choice
from sparq_reference.settings import CacheSpec, SparqSettings

#: ONNX domain and version of every operator
DOMAIN = "ai.sparq"
VERSION = 1

#: memories of an operator's cache, the default first: those of `sparq_ipu.KVCache` without "sram"
MEMORIES = ("streaming", "tiered")

#: One decode step. Where active[b] is not 0, it appends key[b], value[b] to row b. Then it attends to all
#: that each row holds, densely or with SparQ attention.
DENSE_DECODE, SPARQ_DECODE = "DenseDecode", "SparqDecode"
#: Prefill. Row b then holds the first lengths[b] tokens of key[b], value[b] and nothing else: 0 empties it. A
#: length of -1 leaves row b as it is.
CACHE_FILL = "CacheFill"
#: Returns its input. PopART accepts operators of a domain in branches and loop bodies only if the main graph
#: contains one of that domain too: this one.
BEGIN = "Begin"

#: batch and head_dim come with the shapes of the inputs; operators of one cache_name share one KV cache
_OF_CACHE = ("capacity", *CacheSpec.options(), "memory", "hot_rows", "cache_name")
#: the attributes of every operator; a call passes all of them on
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    SPARQ_DECODE: (*(f.name for f in dataclasses.fields(SparqSettings)), "n_kv_heads", *_OF_CACHE),
    DENSE_DECODE: ("n_kv_heads", *_OF_CACHE),
    CACHE_FILL: _OF_CACHE,
    BEGIN: (),
}


def take_options(op: str, options: dict[str, Any]) -> DeviceOptions:
    """Take the options of the cache's memory out of the keyword arguments."""
    check_choice(op, "memory", options.get("memory", MEMORIES[0]), MEMORIES)
    return DeviceOptions(
        **{name: options.pop(name) for name in ("memory", "hot_rows") if name in options}, op=op
    )


def check_cache(
    op: str, spec: CacheSpec, options: DeviceOptions, settings: SparqSettings | None, dense: bool
) -> None:
    """Check that an operator can use such a cache. Settings are None if it takes none; `dense`: it attends to
    all positions."""
    options.check_memory(op, spec)
    if dense:
        check_choice(op, "memory", options.memory, MEMORIES[:1])
    elif settings is not None:
        options.check_attention(op, spec, settings)


def attributes_of(
    op: str, spec: CacheSpec, cache_name: str, settings: SparqSettings | None, options: DeviceOptions
) -> dict[str, Any]:
    """The attributes of an operator on that cache, by name, of arguments that were checked."""
    known = {**dataclasses.asdict(spec), **dataclasses.asdict(options), "cache_name": cache_name}
    if settings is not None:
        known.update(settings.arguments())
    named = ((name, known[name]) for name in ATTRIBUTES[op])
    return {name: int(value) if isinstance(value, bool) else value for name, value in named}
