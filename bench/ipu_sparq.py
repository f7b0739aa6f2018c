# SPDX-License-Identifier: Apache-2.0
"""Time one decode step of attention on an IPU with every kernel: dense attention with the cache in SRAM and
in streaming memory, SparQ from streaming memory with a key index of 16, 8, 4 and 2 bits, and SparQ over three
tiers (key index and hot rows in SRAM).

    python bench/ipu_sparq.py --S 16384 --r 32 --k 128

With an IPU the times are measured. Without one the same device program runs on the bundled emulator, and the
times are modelled from its counts; each time is marked as measured or modelled. Each result is compared bit
for bit with the reference before its time is printed.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any, Callable

import numpy as np
from lib import pod
from lib.common import (
    NO_RANGE,
    NO_SPEEDUPS,
    NO_TIMES,
    SHAPE_FLAGS,
    Column,
    CommandLine,
    Progress,
    Row,
    Workload,
    check_output,
    device_options,
    failure,
    guarded,
    in_flags,
    label,
    new_row,
    number,
    plan_into,
    plan_options,
    speedups_over,
    text_table,
    timing,
)
from lib.inputs import Inputs, load_inputs, random_inputs
from lib.passes import Passes
from lib.steps import STEP_COLUMNS, print_steps, run_steps, shape_of, speedups
from lib.timeline import Timeline, is_picture, load_pyplot

from sparq_ipu import traces
from sparq_ipu.device_options import SPLITS
from sparq_ipu.kernels import DEFAULT, KERNELS, TIERED, Kernel
from sparq_ipu.planning.device_model import device_model, on_chip_range
from sparq_ipu.planning.record import TILE_KINDS, footprint_extrapolated, tile_bytes_by_kind
from sparq_reference import CacheSpec, SparqSettings, exact, ideal, transfers
from sparq_reference.checks import INDEX_BITS

_core: Any = importlib.import_module("sparq_ipu._core")


#: how runs are timed there
ON_IPU = ("reps", "warmup")
#: what shows emulated runs
TIMELINES = ("trace", "heat_map")


def command_line() -> CommandLine:
    """The flags; --help explains them."""
    cli = CommandLine(
        __file__,
        __doc__,
        "Examples:\n"
        "  python bench/ipu_sparq.py --S 16384 --r 32 --k 128\n"
        f"  python bench/ipu_sparq.py --S 8192 --heads 32 --kv-heads 8 --B 4 --kernel {DEFAULT.name}\n"
        f"  python bench/ipu_sparq.py --S 65536 --B 16 --plan-only --kernel {DEFAULT.name}\n"
        "  python bench/ipu_sparq.py --S 16384 --r 32 --k 128 --layers 32 --ipus 16\n"
        "  python bench/ipu_sparq.py --input tests/data/smollm2_hamlet.npz --r 16 --k 64 --local 16\n"
        "Exit status: 0 ok, 1 a result differs or a kernel failed, 2 bad usage.",
        many=("index_bits",),
        defaults={"index_bits": INDEX_BITS},
    )
    cli.add_kernel()
    cli.add_run("the random inputs", reps=10, warmup=2, where=", on an IPU")
    add = cli.run.add_argument
    about = "auto: an IPU if present, else the emulator [auto]"
    add("--device", choices=("auto", "ipu", "emulator"), default="auto", help=about)
    add("--tiles", type=int, default=0, metavar="N", help="tiles of the emulated IPU [all of them]")
    about = (
        "recorded inputs instead of random ones: arrays query_L, key_L, value_L of layer L, as written "
        "by study/capture.py. The file determines the shape; --S takes the last S positions [all]"
    )
    add("--input", metavar="FILE.npz", help=about)
    add("--layer", type=int, metavar="L", help="which layer of --input [the first]")
    about = "do not compare with the reference; results are marked as not compared"
    add("--no-check", dest="check", action="store_false", help=about)
    add("--check", action="store_true", default=True, help="compare with the reference (default)")
    about = "print tiles, memory, bytes and modelled time of each kernel without running (sparq_ipu.plan)"
    add("--plan-only", action="store_true", help=about)
    about = "with --layers: IPUs of one program, a power of two [1]"
    add("--ipus", type=int, default=1, metavar="N", help=about)
    about = "layers in one program: planned, and run if the caches fit this machine's memory [1]"
    add("--layers", type=int, default=1, metavar="N", help=about)
    about = "with --layers: split the layers or the KV heads over the IPUs [layers]"
    add("--split", choices=SPLITS, default=SPLITS[0], help=about)
    cli.add_tiers()
    about = (
        "hit rate: the share of each KV head's selected rows that is hot before every call; assumed "
        "with --plan-only [0]"
    )
    add("--hit-rate", type=float, default=0.0, metavar="P", help=about)
    about = (
        "run N decode steps of the trace --input (recorded by study/capture.py --steps): hit rate, "
        "bytes and time of each step, compared with the reference"
    )
    add("--steps", type=int, default=0, metavar="N", help=about)
    add("--stages", action="store_true", help="print the modelled time of each stage")
    text = (
        "write a timeline of the emulated runs, for ui.perfetto.dev or chrome://tracing; FILE.png: a picture"
    )
    add("--trace", metavar="FILE", help=text)
    text = "draw the cycles and the memory of each tile (needs matplotlib)"
    add("--heat-map", metavar="FILE.png", help=text)
    return cli


def parse(cli: CommandLine, argv: list[str] | None) -> argparse.Namespace:
    """The arguments, checked before there are inputs. `kernels`: those to run; `workloads`: one for each
    --index-bits, None with --input."""
    a = cli.parse(argv)
    cli.at_least(a, ipus=1, layers=1, steps=0)
    if not 0 <= a.hit_rate <= 1:
        cli.error(f"--hit-rate must be in [0, 1], got {a.hit_rate}")
    if a.steps and not a.input:
        cli.error(f"--steps must be given together with --input, got {a.steps} alone")
    if a.layers != 1 and (a.input or a.stages):
        cli.error(f"--layers must be 1 with --input or --stages, got {a.layers}")
    if a.layer is not None and not a.input:
        cli.error(f"--layer must be given together with --input, got {a.layer} alone")
    a.kernels = cli.chosen(a)
    for flag in ("trace", "heat_map"):
        path = getattr(a, flag)
        check_output(cli.parser, f"--{flag.replace('_', '-')}", None if path is None else Path(path))
    a.takes_settings = not all(kernel.is_dense for kernel in a.kernels.values())
    refuse_unused(cli, a)
    of_pod = dict(n_ipus=a.ipus, split=a.split) if a.layers != 1 else {}
    try:
        for kernel in a.kernels.values():
            device_options(a, kernel, **of_pod)
    except ValueError as error:
        cli.error(in_flags(error))
    a.workloads = None if a.input else cli.workloads(a, a.takes_settings)
    if a.heat_map or (a.trace and is_picture(Path(a.trace))):
        load_pyplot()  # ends here where it is missing, not after the runs
    return a


def refuse_unused(cli: CommandLine, a: argparse.Namespace) -> None:
    """Refuse flags that do not apply to what is asked for."""
    if a.plan_only:
        if a.input:
            cli.error(f"--input must not be given with --plan-only, got {a.input}")
        if a.device == "ipu":
            cli.error("--device must be auto or emulator with --plan-only, got ipu")
        cli.refuse(a, "with --plan-only", "stages", *TIMELINES, "check", "seed", *ON_IPU)
    elif a.layers != 1:
        cli.refuse(a, "with --layers and without --plan-only", "hit_rate", *TIMELINES)
    if a.layers == 1:
        cli.refuse(a, "without --layers", "ipus", "split")
    if a.input:
        shape = [f.argument for f in SHAPE_FLAGS if a.steps or f.argument != "capacity"]
        cli.refuse(a, "with --input", *shape)
        cli.refuse(a, "with --input", "seed")
    if a.steps:
        cli.refuse(a, "with --steps", "stages", *TIMELINES, "hit_rate", *ON_IPU)


def jobs(a: argparse.Namespace, workloads: list[Workload]) -> list[tuple[Kernel, Workload]]:
    """Each kernel with each workload that is another one to it."""
    return [
        (kernel, workload)
        for kernel in a.kernels.values()
        for workload in dict.fromkeys(w.on(kernel) for w in workloads)
        # of several key indices those that can stay in SRAM
        if kernel.memory != "tiered" or workload.spec.index_bits != 16 or len(a.index_bits or INDEX_BITS) == 1
    ]


def choose_device(cli: CommandLine, a: argparse.Namespace) -> str:
    device: str = a.device
    if device == "auto":
        device = "emulator" if _core.device_unavailable("ipu") else "ipu"
    reason = _core.device_unavailable(device)
    if reason:
        cli.error(f"--device must be one that is available here, got {device} ({reason})")
    cli.refuse(a, f"on device {device}", *(("tiles", "stages", *TIMELINES) if device == "ipu" else ON_IPU))
    return device


def read_inputs(cli: CommandLine, a: argparse.Namespace) -> tuple[Inputs, list[Workload]]:
    """Those of --input, and what they are workloads for."""
    try:
        inputs = load_inputs(Path(a.input), a.layer, a.capacity)
    except OSError as error:
        cli.error(f"--input must be a file that can be read, got {a.input} ({error.strerror})")
    except ValueError as error:
        cli.error(in_flags(error, file="--input", layer="--layer"))
    batch, n_heads, head_dim = inputs.query.shape
    n_kv_heads, seq_len = inputs.key.shape[1:3]
    shape = dict(capacity=seq_len, batch=batch, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim)
    return inputs, cli.workloads(a, a.takes_settings, **shape)


class Expected:
    """What the reference says: exact (to the bit) and in float64. Worked out when first needed."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._known: dict[Workload, tuple[np.ndarray, np.ndarray]] = {}

    def of(self, workload: Workload) -> tuple[np.ndarray, np.ndarray]:
        if workload not in self._known:
            qkv = self._inputs.query, self._inputs.key, self._inputs.value
            how = workload.settings, workload.spec
            self._known[workload] = exact.attention(*qkv, *how), ideal.attention(*qkv, *how)
        return self._known[workload]


def theoretical_speedup(kernel: Kernel, cache: CacheSpec, settings: SparqSettings | None) -> float:
    """Of cache reads, against dense attention: see `transfers.theoretical_speedup`."""
    if settings is None:
        return 1.0
    seq_len, head_dim = cache.capacity, cache.head_dim
    top_k = min(settings.top_k, seq_len)
    if kernel.memory == "tiered":
        of_row = transfers.row_bytes(head_dim, cache.row_bits)
        return seq_len * transfers.row_bytes(head_dim) / (top_k * of_row)
    return transfers.theoretical_speedup(seq_len, head_dim, settings.rank, top_k, cache.index_bits)


def first_row(kernel: Kernel, device: str, workload: Workload, a: argparse.Namespace) -> Row:
    """What is known before the kernel runs; `workload` as the kernel has it."""
    row = new_row(
        "ipu_sparq",
        kernel.name,
        device,
        workload,
        time_source="measured" if device == "ipu" else "modelled",
        seed=a.seed,
        command=a.command,
    )
    row.update(
        input=None if a.plan_only else a.input or "random",
        streamed_bytes=None,
        theoretical_speedup=theoretical_speedup(kernel, workload.spec, workload.settings),
        **NO_SPEEDUPS,
        seconds_by_category=None,
        max_tile_bytes=None,
        tile_bytes_by_kind=None,
        # of one IPU; its engine option; and whether a modelled time is for a cache larger than any measured
        streaming_memory_bytes=None,
        extended_memory=None,
        footprint_extrapolated=None,
        max_abs_error_vs_float64=None,
        # of the selected rows; and what the host waited for a call, of a measured time
        hit_rate=None,
        host_seconds_per_query=None,
    )
    return row


def run_kernel(
    row: Row,
    workload: Workload,
    inputs: Inputs,
    expected: Expected,
    a: argparse.Namespace,
    step: Callable[[str], None],
    timeline: Timeline | None,
) -> list[tuple[str, int, float]]:
    """Compile, fill the cache, run, check, and only then time; results go into `row`. Returns the modelled
    time by stage: name, executions, seconds."""
    on_ipu = row["device"] == "ipu"
    step("compile")
    passes = Passes(KERNELS[row["kernel"]], workload, a, row["device"])
    session = passes.session
    row["streaming_memory_bytes"] = max(session.streaming_memory_bytes)
    row["extended_memory"] = session.extended_memory
    step("fill the cache")
    session.write(inputs.key, inputs.value, [workload.seq_len] * workload.spec.batch)
    step("run")
    output = passes.run(inputs.query)
    row["hit_rate"] = passes.hit_rate()
    if a.check:
        step("check against the reference")
        check(row, output, *expected.of(workload))
    if on_ipu:
        step("time")
        seconds, row["host_seconds_per_query"] = passes.timed(inputs.query, output, a.warmup, a.reps)
        row.update(timing(seconds))
        return []
    row["footprint_extrapolated"] = footprint_extrapolated(
        KERNELS[row["kernel"]], row["streaming_memory_bytes"]
    )
    model = {"tiles": a.tiles} if a.tiles else {}
    report = _core.emulator_last_run(session, model)
    if timeline is not None:
        timeline.add(session, label(row), model)
    row["seconds_per_query"] = report["seconds"]["total"]
    row["seconds_by_category"] = report["seconds"]
    row.update(on_chip_range(report["seconds"]))
    row["streamed_bytes"] = sum(
        s["bytes"] * s["executions"] for s in report["steps"] if s["kind"] == "remote-read"
    )
    memory = _core.emulator_memory(session)
    row["max_tile_bytes"] = memory["bytes"]
    row["tile_bytes_by_kind"] = tile_bytes_by_kind(memory)
    return [(s["name"], s["executions"], s["seconds"]["total"]) for s in report["steps"]]


def check(row: Row, output: np.ndarray, exact_output: np.ndarray, ideal_output: np.ndarray) -> None:
    """Compare an output with the reference, to the bit, and with float64."""
    differ = output.view(np.uint16) != exact_output.view(np.uint16)
    row["checked_against"] = "reference"
    row["bit_exact"] = not differ.any()
    row["max_abs_error_vs_float64"] = float(np.max(np.abs(output.astype(np.float64) - ideal_output)))
    if differ.any():
        row["error"] = f"{differ.sum()} of {output.size} outputs differ from the reference"


def share_on_chip(row: Row) -> float | None:
    """Share of the modelled time that is not spent on streaming memory."""
    on_chip: float | None = row["on_chip_seconds"]
    return on_chip and on_chip / row["seconds_per_query"]


def code_bytes(row: Row) -> int | None:
    """Of the fullest tile: code and stacks, which are estimated."""
    kinds = row["tile_bytes_by_kind"]
    return kinds and sum(kinds[kind] for kind in TILE_KINDS[3:])


def milliseconds(row: Row) -> str:
    """Time of a row; a star where its cache is beyond the measurements."""
    star = "*" if row["footprint_extrapolated"] else ""
    return number(row["seconds_per_query"], ".4f", 1e3, f" {row['time_source']}{star}")


COLUMNS = (
    Column("kernel", -20, label),
    Column("ms", 18, milliseconds),
    Column("on chip", 8, lambda r: number(share_on_chip(r), ".0%")),
    Column("low", 8, lambda r: number(r["seconds_low"], ".4f", 1e3)),
    Column("high", 8, lambda r: number(r["seconds_high"], ".4f", 1e3)),
    Column("MB streamed", 12, lambda r: number(r["streamed_bytes"], ".2f", 1e-6)),
    Column("over best dense", 16, lambda r: number(r["speedup_vs_best_dense"], ".3g", 1, "x")),
    Column("over streaming", 15, lambda r: number(r["speedup_vs_dense_streaming"], ".3g", 1, "x")),
    Column("in theory", 9, lambda r: number(r["theoretical_speedup"], ".2f", 1, "x")),
    Column("KiB/tile", 9, lambda r: number(r["max_tile_bytes"], ".1f", 1 / 1024)),
    Column("of it code", 10, lambda r: number(code_bytes(r), ".1f", 1 / 1024)),
    Column("bit-exact", 10, lambda r: {True: "yes", False: "NO", None: "unchecked"}[r["bit_exact"]]),
    Column("max |error|", 12, lambda r: number(r["max_abs_error_vs_float64"], ".2e")),
)


def print_results(rows: list[Row]) -> None:
    longest = max(len(label(row)) for row in rows)
    print(text_table((Column("kernel", -max(20, longest), label), *COLUMNS[1:]), rows))
    if rows[0]["time_source"] == "modelled":
        print("Modelled for one Bow IPU from what the emulator counted; nothing was measured on an IPU.")
        print("on chip: the share of that time which is not spent on streaming memory, an estimate.")
        print("low, high: the time in ms with work on chip at the ends of its range.")
    if any(row["footprint_extrapolated"] for row in rows):
        print("*: extrapolated, for a cache larger than any that was measured for the model.")
    print("over best dense: against the fastest dense kernel here; over streaming: against streamed keys.")
    print("in theory: bytes moved, dense / SparQ.")
    if any(KERNELS[row["kernel"]].memory == "tiered" for row in rows):
        share = next(r["hit_rate"] for r in rows if KERNELS[r["kernel"]].memory == "tiered")
        hot = f"{share:.1%} of the selected rows are hot" if share else "no row is hot"
        print(f"{TIERED.name}: before every call {hot}.")
    if any(row["max_tile_bytes"] for row in rows):
        print("KiB/tile: of the fullest tile. of it code: code and stacks, estimated; the rest is counted.")
    print("max |error|: against the same attention in float64.")
    if any(row["index_bits"] != 16 for row in rows):
        print("    There the query is not rounded to score a key index: near ties, others are selected.")


def plans(a: argparse.Namespace) -> list[Row]:
    """Instead of running: what each kernel would do."""
    rows = []
    for kernel, workload in jobs(a, a.workloads):
        rows.append(first_row(kernel, device_model().name, workload, a))
        planned = plan_into(rows[-1], workload, **plan_options(a, kernel))
        print(f"{label(rows[-1])}: {rows[-1]['error']}\n" if planned is None else f"{planned}\n")
    return rows


def runs(
    a: argparse.Namespace, device: str, inputs: Inputs, workloads: list[Workload], progress: Progress
) -> list[Row]:
    """Run each kernel, with a session for each key index, and print what came out."""
    expected = Expected(inputs)
    rows, stages = [], {}
    timeline = Timeline() if a.trace or a.heat_map else None
    todo = jobs(a, workloads)
    for i, (kernel, workload) in enumerate(todo, 1):
        row = first_row(kernel, device, workload, a)

        def step(text: str, of: str = f"[{i}/{len(todo)}] {label(row)}:") -> None:
            progress.step(f"{of} {text}")

        try:
            stages[label(row)] = run_kernel(row, workload, inputs, expected, a, step, timeline)
        except (ValueError, RuntimeError, MemoryError) as error:  # a result too: its row says why
            row.update(failure(error))
        progress.step(None)
        if row["bit_exact"] is False:
            row.update(NO_TIMES, **NO_RANGE, seconds_by_category=None)  # no time for a wrong result
        rows.append(row)
    if timeline is not None and a.trace:
        timeline.write(Path(a.trace))
    if timeline is not None and a.heat_map:
        timeline.draw(Path(a.heat_map))
    dense = [row for row in rows if KERNELS[row["kernel"]].is_dense]
    for row in rows:
        row.update(speedups_over(dense, row))
    print(f"device {device}, {workloads[0].with_plain_cache()}")
    print_results(rows)
    for name in stages if a.stages else ():
        print(f"\n{name}: modelled time by stage")
        for stage, executions, seconds in stages[name]:
            print(f"  {stage:<40} x{executions:<4} {seconds * 1e6:>12.2f} us")
    return rows


def stacks(a: argparse.Namespace, device: str, progress: Progress) -> list[Row]:
    """With --layers: plan every kernel over all IPUs, then run what fits this machine."""
    rows = []
    for kernel, workload in jobs(a, a.workloads):
        row = first_row(kernel, device if device == "ipu" else device_model().name, workload, a)
        row["label"] = label(row)
        planned = None
        if _core.has_emulator:  # which plans are made by
            progress.step(f"{row['label']}: plan")
            planned = pod.planned(row, kernel, workload, a)
            progress.step(None)
            print(f"{row['label']}: {row['error']}\n" if planned is None else f"{planned}")
        if not a.plan_only and not row["error"]:
            reason = pod.why_not_run(planned) if planned is not None and device == "emulator" else None
            if reason is None:
                try:
                    pod.run(
                        row,
                        kernel,
                        workload,
                        a,
                        device,
                        lambda s, of=row["label"]: progress.step(f"{of}: {s}"),
                    )
                except (ValueError, RuntimeError, MemoryError) as error:
                    row.update(failure(error))
                progress.step(None)
            else:
                print(f"  not run: {reason}")
        print()
        rows.append(row)
    print(pod.describe(a, device_model()))
    pod.print_results(rows, a)
    return rows


def read_trace(cli: CommandLine, a: argparse.Namespace) -> tuple[traces.Trace, list[Workload]]:
    """That of --input, and what its steps are workloads for; sets a.layer where it was left out."""
    try:
        trace = traces.load(a.input)
    except OSError as error:
        cli.error(f"--input must be a file that can be read, got {a.input} ({error.strerror})")
    except ValueError as error:
        cli.error(f"--input must be a trace, got {a.input} ({error})")
    a.layer = trace.layer_numbers[0] if a.layer is None else a.layer
    if a.layer not in trace.layers:
        cli.error(f"--layer must be one of {trace.layer_numbers} of {a.input}, got {a.layer}")
    if a.steps > trace.n_steps:
        cli.error(f"--steps must be at most {trace.n_steps}, those of {a.input}, got {a.steps}")
    return trace, cli.workloads(a, a.takes_settings, **shape_of(trace, a.steps))


def runs_of_steps(cli: CommandLine, a: argparse.Namespace, device: str, progress: Progress) -> list[Row]:
    """Steps of a trace by each kernel; prints what came out."""
    trace, workloads = read_trace(cli, a)
    rows = []
    todo = jobs(a, workloads)
    for i, (kernel, workload) in enumerate(todo, 1):
        row = first_row(kernel, device, workload, a)
        row.update(dict.fromkeys(STEP_COLUMNS))
        rows.append(row)

        def step(text: str, of: str = f"[{i}/{len(todo)}] {label(row)}:") -> None:
            progress.step(f"{of} {text}")

        try:
            run_steps(row, workload, trace, a, step)
        except (ValueError, RuntimeError, MemoryError) as error:
            row.update(failure(error))
        progress.step(None)
    if _core.has_emulator:  # which plans are made by
        speedups(rows, workloads[0], a)
    print_steps(rows, trace, a)
    return rows


def main(argv: list[str] | None = None) -> int:
    cli = command_line()
    a = parse(cli, argv)
    if a.layers != 1:
        device = "emulator" if a.plan_only else choose_device(cli, a)
        rows = stacks(a, device, Progress())
    elif a.plan_only:
        rows = plans(a)
    else:
        device = choose_device(cli, a)
        progress = Progress()
        if a.steps:
            rows = runs_of_steps(cli, a, device, progress)
            if a.json:
                a.json.append(rows)
            return 1 if any(row["error"] for row in rows) else 0
        if a.input:
            inputs, workloads = read_inputs(cli, a)
        else:
            progress.step("inputs")
            workloads = a.workloads
            inputs = random_inputs(workloads[0].spec, workloads[0].n_heads, a.seed)
            progress.step(None)
        rows = runs(a, device, inputs, workloads, progress)
    if a.json:
        a.json.append(rows)
    return 1 if any(row["error"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(guarded(main))
