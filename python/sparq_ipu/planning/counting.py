# SPDX-License-Identifier: Apache-2.0
"""What the emulator counts in a dry run of one IPU, and whether that IPU has room for it."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from typing import Any, Sequence

from sparq_ipu.device_options import DeviceOptions
from sparq_ipu.kernels import Attention
from sparq_ipu.planning.device_model import DeviceModel
from sparq_ipu.planning.request import Request
from sparq_reference import CacheSpec, DoesNotFit


def counted(
    request: Request, cache: CacheSpec, lengths: Sequence[int], n_layers: int, ipu: int | None = None
) -> dict[str, Any]:
    """The counts of an IPU with so many layers of such a cache, or DoesNotFit, which names the IPU. ipu: of
    several in one program, its number. All layers are then run, one after the other."""
    _check_emulator()
    model, kernel = request.model, request.kernel
    try:
        # before the dry run, whose own time and memory grow with the size
        of_layer, in_sram = kernel.cache_bytes(cache)
        _check_cache_in_sram(model, in_sram * n_layers)
        _check_streaming_memory(model, {name: n * n_layers for name, n in of_layer.items()}, ipu)
        result = _dry_run(
            cache,
            request.n_heads // request.cache.n_kv_heads * cache.n_kv_heads,
            Attention(kernel.name, request.settings),
            tuple(lengths),
            dataclasses.replace(request.device_options, n_ipus=1),
            tuple(model.parameters().items()),
            append=request.append,
            n_layers=n_layers,
            hit_rate=request.hit_rate or 0.0,
            stacked=ipu is not None,
            misses=tuple(request.misses or ()),
            may_widen=request.may_widen,
        )
    except DoesNotFit as error:
        if ipu is None or not error.resource.startswith("tile memory"):
            raise
        message, resource = f"{error} (IPU {ipu})", f"tile memory of IPU {ipu}"
        raise DoesNotFit(message, resource, error.need, error.room) from error
    result["streaming_memory"] = {name: n for name, n, _ in result["streaming_memory"]}
    _check_streaming_memory(model, result["streaming_memory"], ipu)
    return result


def _check_emulator() -> None:
    try:
        from sparq_ipu import _core
    except ImportError as error:
        raise RuntimeError(f"plan: the extension module must be built, got none ({error})") from error
    if not _core.has_emulator:
        raise RuntimeError("plan: the extension module must be built with the emulator, got one without")


def _dry_run(*program: Any, **more: Any) -> dict[str, Any]:
    """What the emulator counts, for the caller to keep and change."""
    return copy.deepcopy(_counts_of(*program, **more))


@functools.lru_cache(maxsize=64)
def _counts_of(
    cache: CacheSpec,
    n_heads: int,
    attention: Attention,
    lengths: tuple[int, ...],
    options: DeviceOptions,
    parameters: tuple[tuple[str, Any], ...],
    **more: Any,
) -> dict[str, Any]:
    """Kept: a large program takes a second, and plans that are compared share dense attention at least."""
    from sparq_ipu import _core

    counts: dict[str, Any] = _core.emulator_plan(
        cache, n_heads, attention, list(lengths), options=options, model=dict(parameters), **more
    )
    return counts


def counted_between(request: Request) -> list[dict[str, Any]]:
    """The steps that heads on several IPUs take beside those of one IPU, all layers in one launch: what goes
    between the IPUs, and what they have to agree on: of each layer one branch, and in three tiers one by a
    number and one number."""
    from sparq_ipu import _core

    cache = request.cache
    result = _core.emulator_plan(
        cache,
        request.n_heads,
        Attention(request.kernel.name, request.settings),
        [cache.capacity] * cache.batch,
        options=request.device_options,
        model=request.model.parameters(),
        append=request.append,
        n_layers=request.n_layers,
        stacked=True,
        only_between=True,
    )
    steps: list[dict[str, Any]] = result["steps"]
    return steps


def _check_cache_in_sram(model: DeviceModel, n_bytes: int) -> None:
    if n_bytes > model.tiles * model.tile_bytes:
        need = math.ceil(n_bytes / model.tiles)
        raise DoesNotFit(
            f"plan: tile memory: the fullest tile must need at most {model.tile_bytes} bytes, "
            f"got {need} (of the cache alone, over {model.tiles} tiles)",
            "tile memory",
            need,
            model.tile_bytes,
        )


def _check_streaming_memory(model: DeviceModel, buffers: dict[str, int], ipu: int | None) -> None:
    need, room = sum(buffers.values()), model.streaming_memory_bytes
    if need > room:
        largest = ", ".join(f"{name} {n}" for name, n in sorted(buffers.items(), key=lambda x: -x[1]))
        of_ipu = "an IPU" if ipu is None else f"IPU {ipu}"
        raise DoesNotFit(
            f"plan: streaming memory of {of_ipu} must be at most {room} bytes, got {need} ({largest})",
            "streaming memory" if ipu is None else f"streaming memory of {of_ipu}",
            need,
            room,
        )


def remote_copies(steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of counted steps those that use streaming memory."""
    return [step for step in steps if step["kind"].startswith("remote")]


def seconds_beyond(model: DeviceModel, n_ipus: int, steps: Sequence[dict[str, Any]]) -> float:
    """What remote copies take longer where IPUs, so many at once, share the streaming rate of one behind each
    gateway."""
    shared = model.with_streaming_share(1 / min(n_ipus, model.ipus_per_gateway))
    seconds = 0.0
    for step in remote_copies(steps):
        copy = step["bytes"], step["packets"], step["rows"]
        longer = shared.streaming_seconds(*copy) - model.streaming_seconds(*copy)
        seconds += longer * int(step["executions"])
    return seconds


def streamed_bytes(steps: Sequence[dict[str, Any]]) -> int:
    """Read from and written to streaming memory."""
    return sum(step["bytes"] * step["executions"] for step in remote_copies(steps))
