# SPDX-License-Identifier: Apache-2.0
"""What an attention program would do on an IPU, without running it: tiles, waves, memory, bytes, time.

    print(sparq_ipu.plan(seq_len=16384, rank=32, top_k=128))

The device program is built and compiled as for a run and then counted in a dry run, which carries out only
what control flow depends on: no cache is allocated and nothing is computed. Every time is modelled
(docs/device_model.md).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

from sparq_ipu.kernels import BASELINE, DEFAULT
from sparq_ipu.planning.counting import counted, seconds_beyond, streamed_bytes
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
    n_ipus: int = 1,
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
        n_ipus: IPUs that share KV heads, then batch, each with a process; nothing passes between them. Of
            window attention 1.
        n_layers: layers of this shape on the same IPUs, in [1, 1024]. Times are of one layer's call, memory
            is of all; `seconds_per_token` is the time of all layers.
        hit_rate: of a cache in three tiers, in [0, 1]: the share of selected rows that is taken to be hot;
            0: all are read from streaming memory. Not predicted: docs/device_model.md has what was measured.
        misses: instead of a rate, (batch * n_kv_heads,) rows that each KV head of each element misses, in
            [0, top_k]. With one IPU.
        options: rank, top_k, n_local and mean_value of SparQ attention; top_k, n_local (half of top_k) and
            n_recent (32) of window attention. Settings that are not given are the recommended ones
            (`sparq_ipu.transformers.RECOMMENDED`; n_local a quarter of top_k). Options of the cache, see
            `sparq_reference.CacheSpec`: index_bits (16, 8, 4 or 2; 2 unless given), row_bits (16; in three
            tiers also 8). Options of the device, see `sparq_ipu.device_options.DeviceOptions`: n_tiles, and
            for a cache in three tiers hot_rows.
            Dense attention ignores settings and options of the cache.
        baseline: for a kernel that takes settings, plan dense-streaming too, for the predicted speed-up.

    Raises:
        ValueError: an argument out of range.
        DoesNotFit (a ValueError): tile memory or the streaming memory of an IPU can not hold it.
        RuntimeError: the extension module is not built, or without the emulator to count with.
    """
    request = check_request(
        plan,
        dict(batch=batch, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, seq_len=seq_len),
        kernel,
        options,
        lengths=lengths,
        append=append,
        device=device,
        n_layers=n_layers,
        n_processes=n_ipus,
        hit_rate=hit_rate,
        misses=misses,
    )
    baseline = checks.check_bool("plan", "baseline", baseline)
    result = _planned(request)
    if request.kernel is BASELINE:
        return _over(result, result)
    if request.kernel.is_dense or not baseline:
        return result
    try:
        return _over(result, _planned(request.dense(BASELINE)))
    except DoesNotFit:  # there is no speed-up over it then
        return result


def _over(plan: Plan, dense: Plan) -> Plan:
    """The plan with its speed-ups over that of dense attention."""
    return dataclasses.replace(
        plan,
        speedup_vs_dense_streaming=dense.seconds_per_query / plan.seconds_per_query,
        speedup_if_gateway_shared=dense.seconds_if_gateway_shared / plan.seconds_if_gateway_shared,
        speedup_low=dense.seconds_high / plan.seconds_high,
        speedup_high=dense.seconds_low / plan.seconds_low,
    )


def _planned(request: Request) -> Plan:
    cache = request.cache_of_process
    counts = (counted(request, cache, lengths, request.n_layers) for lengths in request.lengths_of_processes)
    slowest = max(counts, key=lambda c: c["seconds"]["total"])
    steps, seconds = slowest["steps"], slowest["seconds"]["total"]
    return Plan(
        request=request,
        per_ipu=request.per_ipu,
        mapping=slowest["mapping"],
        memory=slowest["memory"],
        streaming_memory=slowest["streaming_memory"],
        stages=tuple(
            Stage(s["name"], s["kind"], s["executions"], s["seconds"]["total"], streamed_bytes([s]))
            for s in steps
        ),
        seconds_by_category=slowest["seconds"],
        streamed_bytes=streamed_bytes(steps),
        seconds_per_query=seconds,
        seconds_if_gateway_shared=seconds + seconds_beyond(request.model, request.n_ipus, steps),
        steps=steps,
        extended_memory=slowest["extended_memory"],
    )
