# SPDX-License-Identifier: Apache-2.0
"""A stack of layers over the IPUs of a Pod, for bench/ipu_sparq.py --layers: plans, and runs of what fits."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import time
from typing import Any, Callable

import numpy as np

from sparq_ipu import KVCache
from sparq_ipu.attention import attention
from sparq_ipu.backends.room import host_memory
from sparq_ipu.devices import available_devices
from sparq_ipu.kernels import Attention, Kernel
from sparq_ipu.planning import PodPlan, plan_pod
from sparq_ipu.planning.links import gateways
from sparq_ipu.planning.record import NOT_IN_A_PLAN

from .common import Column, Row, Workload, device_options, failure, number, plan_options, text_table, timing
from .inputs import random_inputs

_core: Any = importlib.import_module("sparq_ipu._core")

#: of this machine's memory: what emulated caches may take
MEMORY_SHARE = 0.5

COLUMNS = (
    Column("kernel", -20, lambda r: r["label"]),
    Column("us per token", 12, lambda r: number(r.get("seconds_per_token"), ".1f", 1e6)),
    Column("gateway shared", 14, lambda r: number(r.get("seconds_if_gateway_shared"), ".1f", 1e6)),
    Column("one at a time", 13, lambda r: number(r.get("seconds_if_in_turn"), ".1f", 1e6)),
    Column("streaming", 10, lambda r: _share(r, "streaming")),
    Column("on chip", 8, lambda r: _share(r, "compute", "exchange", "sync")),
    Column("links", 6, lambda r: _share(r, "links")),
    Column("GB per IPU", 10, lambda r: number(r.get("streaming_memory_bytes"), ".2f", 1e-9)),
    Column("KiB/tile", 9, lambda r: number(r.get("max_tile_bytes"), ".0f", 1 / 1024)),
    Column("bit-exact", 10, lambda r: {True: "yes", False: "NO", None: "not run"}[r["bit_exact"]]),
)


def _share(row: Row, *names: str) -> str:
    seconds = row.get("seconds_by_category")
    return "-" if not seconds else f"{sum(seconds[n] for n in names) / seconds['total']:.1%}"


def planned(row: Row, kernel: Kernel, workload: Workload, a: argparse.Namespace) -> PodPlan | None:
    """Plan at full size, into the row."""
    arguments = workload.plan_arguments()
    try:
        result = plan_pod(
            **arguments,
            kernel=kernel.name,
            n_layers=a.layers,
            n_ipus=a.ipus,
            split=a.split,
            **plan_options(a, kernel),
        )
    except ValueError as error:
        row.update(failure(error))
        return None
    row.update(result.row())
    row["seconds_per_query"] = result.seconds_per_token / a.layers
    return result


def why_not_run(plan: PodPlan) -> str | None:
    """Why this machine can not emulate it; None if it can."""
    need = plan.streaming_memory_bytes * plan.request.n_ipus
    room = host_memory()
    if room is not None and need > MEMORY_SHARE * room:
        return f"its caches take {need / 1e9:.1f} GB, of this machine's {room / 1e9:.1f} GB"
    return None


def run(
    row: Row,
    kernel: Kernel,
    workload: Workload,
    a: argparse.Namespace,
    device: str,
    step: Callable[[str], None],
) -> None:
    """All layers in one launch, each with the output of the one before as its query; compared bit for bit
    with the CPU kernels or the reference, layer by layer. What an emulated run counts is in the row too."""
    step("compile")
    session = _core.Session(
        workload.spec,
        workload.n_heads,
        attention=[Attention(kernel.name, workload.settings)],
        options=device_options(a, kernel, n_ipus=a.ipus, split=a.split),
        append=False,
        device=device,
        n_layers=a.layers,
        stacked=True,
    )
    on = next(name for name in available_devices() if name in ("cpu", "reference"))
    query = expected = random_inputs(
        dataclasses.replace(workload.spec, capacity=1), workload.n_heads, a.seed
    ).query
    for layer in range(a.layers):
        step(f"fill layer {layer}")
        inputs = random_inputs(workload.spec, workload.n_heads, a.seed + 1 + layer)
        session.write(inputs.key, inputs.value, [workload.seq_len] * workload.spec.batch, layer)
        if a.check:
            cache = KVCache(**dataclasses.asdict(workload.spec), device=on)
            cache.append(inputs.key, inputs.value)
            expected = attention(expected, cache, workload.settings)
    step("run")
    output = session.attend_all(0, query)
    if a.check:
        differ = output.view(np.uint16) != expected.view(np.uint16)
        row["checked_against"] = on
        row["bit_exact"] = not differ.any()
        if differ.any():
            row["error"] = f"{differ.sum()} of {output.size} outputs differ from {on}"
    if device == "ipu":
        seconds = []
        for i in range(a.warmup + a.reps):
            if kernel.memory == "tiered":
                session.forget_hot()  # cold, as the first call was
            start = time.perf_counter()
            again = session.attend_all(0, query)
            if i >= a.warmup:
                seconds.append(time.perf_counter() - start)
            if again.tobytes() != output.tobytes():
                raise RuntimeError(f"call {i + 1} gave another result than the first")
        row.update(timing(seconds))
        row["seconds_per_token"], row["time_source"] = row["seconds_per_query"], "measured"
        return
    report = _core.emulator_last_run(session, {"tiles": a.tiles} if a.tiles else {})
    of_token = report["seconds"] if a.split == "layers" else report["seconds_by_ipu"][0]
    row["emulated_seconds_per_token"] = of_token["total"]
    row["emulated_seconds_by_category"] = of_token


def print_results(rows: list[Row], a: argparse.Namespace) -> None:
    print(text_table(COLUMNS, rows))
    source = "measured, with its launch" if rows[0]["time_source"] == "measured" else "modelled"
    print(f"us per token: attention of {a.layers} layers for one token of every batch element; {source}.")
    print(f"GB and KiB are of one batch. {NOT_IN_A_PLAN}.")
    if a.split == "heads":
        print("gateway shared: where the IPUs behind one gateway share the streaming rate of one.")
        print("one by one: where the programs of the IPUs run one after the other.")
    else:
        print("One IPU streams at a time, so a shared gateway takes nothing from one token.")
    for row in rows:
        if row.get("emulated_seconds_per_token"):
            emulated = row["emulated_seconds_per_token"]
            off = emulated / row["seconds_per_token"] - 1
            print(f"{row['label']}: the emulated run counts {emulated * 1e6:.1f} us, {off:+.2%} of the plan")


def describe(a: argparse.Namespace, n_gateways_of: Any) -> str:
    n = gateways(a.ipus, n_gateways_of)
    return f"{a.layers} layers over {a.ipus} IPUs behind {n} gateways, split by {a.split}"
