# SPDX-License-Identifier: Apache-2.0
"""What an attention program would do on an IPU, without running it: tiles, waves, memory, bytes, time.

    print(sparq_ipu.plan(seq_len=16384, rank=32, top_k=128))

The device program is built and compiled as for a run and then counted in a dry run, which carries out only
what control flow depends on: no cache is allocated and nothing is computed. Every time is modelled
(docs/device_model.md).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, NamedTuple, Sequence

from sparq_ipu.kernels import BASELINE, DEFAULT, DENSE_SRAM, Kernel
from sparq_ipu.planning.counting import counted, streamed_bytes
from sparq_ipu.planning.device_model import DeviceModel
from sparq_ipu.planning.record import Plan, Stage
from sparq_ipu.planning.request import Request, check_request
from sparq_reference import DoesNotFit, checks


def plan(
    batch: int = 1,
    n_heads: int = 32,
    n_kv_heads: int | None = None,
    head_dim: int = 128,
    seq_len: int = 16384,
    *,
    kernel: str = DEFAULT.name,
    lengths: Sequence[int] | None = None,
    append: bool = False,
    device: str | DeviceModel = "bow",
    n_layers: int = 1,
    hit_rate: float = 0.0,
    misses: Sequence[int] | None = None,
    baseline: bool = True,
    **options: Any,
) -> Plan:
    """Plan one attention call.

    Args:
        batch, n_heads, n_kv_heads, head_dim: of the layer; n_kv_heads None: as many as n_heads.
        seq_len: capacity of the cache in positions, and its length unless `lengths` is given.
        kernel: a name of `sparq_ipu.kernels.KERNELS`.
        lengths: (batch,) positions held by each batch element, in [1, seq_len].
        append: whether the program that appends on the device is compiled too (a `KVCache` has it; it takes
            tile memory).
        device: name of a device model ("bow", "gc200"), or a model.
        n_layers: layers of this shape on the same IPU, in [1, 1024]. Times are of one layer's call, memory
            is of all; `seconds_per_token` is the time of all layers.
        hit_rate: in three tiers, the assumed share of selected rows that is hot, in [0, 1]; 0: all are read
            from streaming memory. Not predicted: docs/device_model.md has what was measured.
        misses: instead of a rate, (batch * n_kv_heads,) rows that each KV head of each element misses, in [0,
            top_k].
        options: settings of SparQ or window attention, by default the recommended ones
            (`sparq_ipu.transformers.RECOMMENDED`; n_local a quarter of top_k, for a window half); of the
            cache, see `sparq_reference.CacheSpec`; n_tiles and hot_rows, see
            `sparq_ipu.device_options.DeviceOptions`. Dense attention ignores settings and options of the
            cache.
        baseline: plan dense attention too, for the predicted speed-ups: over the best dense plan (as many
            layers in SRAM as fit, or all in streaming memory), and over dense-streaming.

    Raises:
        ValueError: an argument out of range.
        DoesNotFit (a ValueError): tile memory or the streaming memory of an IPU can not hold it.
        RuntimeError: the extension module is not built, or without the emulator to count with.
    """
    sizes = dict(batch=batch, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, seq_len=seq_len)
    how: dict[str, Any] = dict(append=append, device=device, n_layers=n_layers, hit_rate=hit_rate)
    request = check_request(plan, sizes, kernel, options, lengths=lengths, misses=misses, **how)
    baseline = checks.check_bool("plan", "baseline", baseline)
    result = planned(request)
    return _over_dense(result) if baseline else result


def _over_dense(plan: Plan) -> Plan:
    """The plan with its speed-ups over dense attention, which does not append."""
    streaming = _if_fits(plan.request.dense(BASELINE))
    best = _best_dense(plan.request, streaming)
    changes: dict[str, Any] = {}
    if isinstance(streaming, Plan):
        changes["speedup_vs_dense_streaming"] = streaming.seconds_per_query / plan.seconds_per_query
    if best:
        changes["speedup_vs_best_dense"] = best.likely / plan.seconds_per_query
        changes["speedup_low"] = best.high / plan.seconds_high
        changes["speedup_high"] = best.low / plan.seconds_low
    return dataclasses.replace(plan, **changes)


class _Dense(NamedTuple):
    """Seconds of a layer, with work on chip low, likely and high."""

    low: float
    likely: float
    high: float


def _best_dense(request: Request, streaming: Plan | DoesNotFit) -> _Dense | None:
    """The faster of dense attention in streaming memory, and with as many layers in SRAM as fit."""

    def mean(layers: Sequence[tuple[int, Any]]) -> _Dense:
        names = ("seconds_low", "seconds_per_query", "seconds_high")
        return _Dense(*(sum(n * getattr(p, name) for n, p in layers) / request.n_layers for name in names))

    def layers(kernel: Kernel, n: int, may_widen: bool = True) -> Plan | DoesNotFit:
        return _if_fits(dataclasses.replace(request.dense(kernel), n_layers=n, may_widen=may_widen))

    n, sram, rest = most_on_chip(
        request.n_layers,
        lambda n: layers(DENSE_SRAM, n, may_widen=False),
        lambda n: layers(BASELINE, n),
        request.model.tile_bytes,
        lambda n: layers(DENSE_SRAM, n),
    )
    of_sram: list[tuple[int, Any]] = [(n, sram), (request.n_layers - n, rest)]
    candidates = [[(request.n_layers, streaming)], [(k, p) for k, p in of_sram if k]]
    fitting = [mean(layers) for layers in candidates if all(isinstance(p, Plan) for _, p in layers)]
    return min(fitting, key=lambda dense: dense.likely, default=None)


def _if_fits(request: Request) -> Plan | DoesNotFit:
    try:
        return planned(request)
    except DoesNotFit as error:
        return error


def most_on_chip(
    n_layers: int,
    on_chip: Callable[[int], Plan | DoesNotFit],
    others: Callable[[int], Plan | DoesNotFit],
    room: int,
    widened: Callable[[int], Plan | DoesNotFit] | None = None,
) -> tuple[int, Plan | None, Plan | None]:
    """How many of an IPU's layers can be on chip beside the others, which have a program of their own.

    Args:
        on_chip, others: the plan of so many layers of either kind, or what they lack by themselves.
        room: bytes of a tile for both.
        widened: as `on_chip`, of programs that are faster and may take more memory. They get what the
            largest number of layers leaves.

    Returns:
        The number, and both plans; 0 and no plan where none fits.
    """
    best: tuple[int, Plan | None, Plan | None] = (0, None, None)

    def tile_bytes(plan: Plan | DoesNotFit) -> int:
        return plan.max_tile_bytes if isinstance(plan, Plan) else plan.need

    beside = tile_bytes(others(n_layers))  # of the others' program, whatever their number
    # bytes of a tile by layers on chip; 0: both programs, taken to be alike; roughly where they do not fit
    need = {0: 2 * beside}

    def fits(n: int) -> bool:
        nonlocal best
        kept = on_chip(n)
        rest = others(n_layers - n) if n != n_layers and isinstance(kept, Plan) else None
        needed = tile_bytes(kept) + (tile_bytes(rest) if rest else 0)
        need[n] = needed if rest else needed + beside
        if not isinstance(kept, Plan) or isinstance(rest, DoesNotFit) or needed > room:
            return False
        best = (n, kept, rest)
        return True

    low, high = 0, n_layers  # SRAM grows with the layers on chip, nearly in a straight line
    if fits(n_layers):
        low = n_layers
    while high - low > 1:
        (a, of_a), (b, of_b) = list(need.items())[-2:]
        of_layer = (of_b - of_a) / (b - a)
        guess = a + int((room - of_a) / of_layer) if of_layer > 0 else (low + high) // 2
        middle = min(max(guess, low + 1), high - 1)
        low, high = (middle, high) if fits(middle) else (low, middle)
    n, kept, rest = best
    faster = widened(n) if widened and kept else None
    if isinstance(faster, Plan) and tile_bytes(faster) + (tile_bytes(rest) if rest else 0) <= room:
        return n, faster, rest
    return best


def planned(request: Request) -> Plan:
    """What `plan` returns, without a comparison with dense attention."""
    return of_counts(request, counted(request, request.cache, request.lengths, request.n_layers))


def of_counts(request: Request, counts: dict[str, Any], n_layers: int = 1) -> Plan:
    """The plan of what was counted, where `n_layers` ran one after the other."""
    steps, seconds = counts["steps"], counts["seconds"]["total"] / n_layers
    return Plan(
        request=request,
        mapping=counts["mapping"],
        memory=counts["memory"],
        streaming_memory=counts["streaming_memory"],
        stages=tuple(
            Stage(
                s["name"],
                s["kind"],
                s["executions"] // n_layers,
                s["seconds"]["total"] / n_layers,
                streamed_bytes([s]) // n_layers,
            )
            for s in steps
        ),
        seconds_by_category={name: t / n_layers for name, t in counts["seconds"].items()},
        streamed_bytes=streamed_bytes(steps) // n_layers,
        seconds_per_query=seconds,
        steps=steps,
        extended_memory=counts["extended_memory"],
    )
