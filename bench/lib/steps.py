# SPDX-License-Identifier: Apache-2.0
"""Decode steps of a recorded trace, one after the other: what `ipu_sparq.py --steps` runs. Each step appends
the token by the device, attends, and is compared with the reference."""

from __future__ import annotations

import argparse
import importlib
import statistics
from pathlib import Path
from typing import Any, Callable

import numpy as np

from sparq_ipu.kernels import BASELINE, Attention, Kernel
from sparq_ipu.planning import plan
from sparq_ipu.traces import Trace
from sparq_reference import exact

from .common import Column, Row, Workload, device_options, label, number, text_table

_core: Any = importlib.import_module("sparq_ipu._core")

#: of a row of --steps, beside those of all rows; None where the kernel has no hot rows
STEP_COLUMNS = (
    "text",
    "kind",
    "layer",
    "n_steps",
    "hot_rows",
    "misses_per_step",
    "hit_rate",
    "seconds_per_step",
    "seconds_p95",
    "streamed_bytes_per_step",
)


def shape_of(trace: Trace, n_steps: int) -> dict[str, int]:
    """Arguments of a workload: the cache that the first steps of a trace need."""
    return dict(
        capacity=trace.start + n_steps,
        batch=1,
        n_heads=trace.n_heads,
        n_kv_heads=trace.n_kv_heads,
        head_dim=trace.head_dim,
    )


def run_steps(
    row: Row, workload: Workload, trace: Trace, a: argparse.Namespace, step: Callable[[str], None]
) -> None:
    """Run the first `a.steps` steps of layer `a.layer`; results go into `row`."""
    layer = trace.layers[a.layer]
    kernel: Kernel = a.kernels[row["kernel"]]
    tiered, on_ipu = kernel.memory == "tiered", row["device"] == "ipu"
    step("compile")
    session = _core.Session(
        workload.spec,
        workload.n_heads,
        attention=[Attention(row["kernel"], workload.settings)],
        options=device_options(a, kernel),
        device=row["device"],
        timed=on_ipu,
    )
    step("fill the cache")
    first = slice(None, trace.start)
    session.write(layer.key[None, :, first].copy(), layer.value[None, :, first].copy(), [trace.start])
    seconds, streamed, misses, differ = [], [], [], 0
    for i, (query, key, value) in enumerate(layer.steps(trace.start)):
        if i == a.steps:
            break
        step(f"step {i + 1} of {a.steps}")
        session.append(key[None].copy(), value[None].copy(), [1])
        output = session.attention(0, query[None].copy())
        if on_ipu:
            seconds.append(session.cycles() / session.clock_hz)
        else:
            report = _core.emulator_last_run(session, {"tiles": a.tiles} if a.tiles else {})
            seconds.append(report["seconds"]["total"])
            streamed.append(
                sum(s["bytes"] * s["executions"] for s in report["steps"] if s["kind"] == "remote-read")
            )
        if tiered:
            misses.append(sum(session.misses()))
        if a.check:
            held = slice(None, trace.start + i + 1)
            expected = exact.attention(
                query[None],
                layer.key[None, :, held],
                layer.value[None, :, held],
                workload.settings,
                workload.spec,
            )
            differ += int((output.view(np.uint16) != expected.view(np.uint16)).any())
    row.update(
        text=trace.text,
        kind=trace.kind,
        layer=a.layer,
        n_steps=len(seconds),
        seconds_per_query=statistics.median(seconds),
        seconds_per_step=seconds,
        seconds_p95=sorted(seconds)[int(0.95 * (len(seconds) - 1))],
    )
    if streamed:  # an IPU does not count it
        row.update(streamed_bytes_per_step=streamed, streamed_bytes=int(statistics.median(streamed)))
    if a.check:
        row.update(checked_against="reference", bit_exact=differ == 0)
        if differ:
            row["error"] = f"outputs of {differ} of {len(seconds)} steps differ from the reference"
    if tiered and workload.settings is not None:
        selected = min(workload.settings.top_k, workload.seq_len) * workload.spec.n_kv_heads
        later = misses[1:] or misses  # at the first step nothing is hot
        row.update(
            hot_rows=a.hot_rows, misses_per_step=misses, hit_rate=1 - statistics.fmean(later) / selected
        )


def speedups(rows: list[Row], workload: Workload, a: argparse.Namespace) -> None:
    """Against dense attention, planned for the last length."""
    shape = {k: v for k, v in workload.plan_arguments().items() if k in ("batch", "n_heads", "n_kv_heads")}
    dense = plan(
        **shape,
        head_dim=workload.spec.head_dim,
        seq_len=workload.seq_len,
        kernel=BASELINE.name,
        n_tiles=a.tiles,
    )
    for row in rows:
        if row["seconds_per_query"]:
            over = dense.seconds_per_query / row["seconds_per_query"]
            row["speedup_vs_dense_streaming"] = over
            row["speedup_vs_best_dense"] = over * (dense.speedup_vs_best_dense or 1)


def _of_first(row: Row) -> str:
    return number(row["seconds_per_step"] and row["seconds_per_step"][0], ".1f", 1e6)


STEP_TABLE = (
    Column("kernel", -20, label),
    Column("hit rate", 9, lambda r: number(r["hit_rate"], ".1%")),
    Column("us a step", 10, lambda r: number(r["seconds_per_query"], ".1f", 1e6)),
    Column("95th", 8, lambda r: number(r["seconds_p95"], ".1f", 1e6)),
    Column("first", 8, _of_first),
    Column("KB streamed", 12, lambda r: number(r["streamed_bytes"], ".1f", 1e-3)),
    Column("over best dense", 16, lambda r: number(r["speedup_vs_best_dense"], ".3g", 1, "x")),
    Column("over streaming", 15, lambda r: number(r["speedup_vs_dense_streaming"], ".3g", 1, "x")),
    Column("bit-exact", 10, lambda r: {True: "every step", False: "NO", None: "unchecked"}[r["bit_exact"]]),
)


def print_steps(rows: list[Row], trace: Trace, a: argparse.Namespace) -> None:
    print(
        f"{Path(a.input).name}: {trace.text} ({trace.kind}, {trace.model}), "
        f"layer {a.layer}, {a.steps} steps from {trace.start} positions on, {trace.n_heads} heads, "
        f"{trace.n_kv_heads} KV heads, head_dim {trace.head_dim}"
    )
    print(text_table(STEP_TABLE, rows))
    if rows[0]["time_source"] == "modelled":
        print("Modelled for one Bow IPU from what the emulator counted; nothing was measured on an IPU.")
    print("us a step, KB streamed: medians over the steps. 95th: percentile. first: nothing was hot yet.")
    print("hit rate: of the selected rows, after the first step.")
    print(f"speed-up: {BASELINE.name}, planned for the last length, over the median.")
