# SPDX-License-Identifier: Apache-2.0
"""One decode step of attention on an IPU: dense from SRAM, dense from streaming memory, SparQ from streaming
memory.

    python bench/ipu_sparq.py --S 16384 --r 32 --k 128

On a machine with an IPU the times are measured there. Elsewhere the same device program runs on the bundled
emulator, and the times are modelled from what it counted; every time says which. Each result is compared bit
for bit with the reference before its time is printed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from inputs import Inputs, git_revision, load_inputs, random_inputs

import sparq_ipu
from sparq_ipu import _core
from sparq_reference import checks, exact, ideal, transfers

KERNELS = ("dense-sram", "dense-streaming", "sparq-streaming")
#: where neither the command line nor a file says something else
SHAPE = {"S": 16384, "B": 1, "heads": 32, "head_dim": 128}


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Examples:\n"
        "  python bench/ipu_sparq.py --S 16384 --r 32 --k 128\n"
        "  python bench/ipu_sparq.py --S 8192 --heads 32 --kv-heads 8 --B 4 --kernel sparq-streaming\n"
        "  python bench/ipu_sparq.py --S 65536 --B 16 --kernel sparq-streaming --plan-only --ipus 4\n"
        "  python bench/ipu_sparq.py --input tests/data/smollm2_hamlet.npz --r 16 --k 64 --local 16\n"
        "Exit status: 0 ok, 1 a result differs or a kernel failed, 2 bad usage.",
    )
    shape = parser.add_argument_group("shape")
    shape.add_argument(
        "--S",
        type=int,
        metavar="N",
        help=f"cached positions (default {SHAPE['S']}; with --input: all of the file)",
    )
    shape.add_argument("--B", type=int, metavar="N", help=f"batch (default {SHAPE['B']})")
    shape.add_argument("--heads", type=int, metavar="N", help=f"query heads (default {SHAPE['heads']})")
    shape.add_argument(
        "--kv-heads",
        type=int,
        default=None,
        metavar="N",
        help="KV heads; fewer than --heads: grouped-query attention (default: --heads)",
    )
    shape.add_argument(
        "--head-dim", type=int, metavar="N", help=f"components of a head (default {SHAPE['head_dim']})"
    )
    sparq = parser.add_argument_group("SparQ")
    sparq.add_argument(
        "--r",
        type=int,
        default=32,
        metavar="N",
        help="rank: components of every key that are read (default %(default)s)",
    )
    sparq.add_argument(
        "--k", type=int, default=128, metavar="N", help="top-k: positions attended to (default %(default)s)"
    )
    sparq.add_argument(
        "--local",
        type=int,
        default=0,
        metavar="N",
        help="of these, the most recent ones that are always taken (default %(default)s)",
    )
    sparq.add_argument(
        "--no-mean-value",
        action="store_true",
        help="do not give the weight of the other positions to the mean value",
    )
    run = parser.add_argument_group("run")
    run.add_argument(
        "--kernel", choices=("all", *KERNELS), default="all", help="what to run (default %(default)s)"
    )
    run.add_argument(
        "--device",
        choices=("auto", "ipu", "emulator"),
        default="auto",
        help="auto: an IPU if there is one, else the emulator",
    )
    run.add_argument(
        "--tiles", type=int, default=0, metavar="N", help="tiles of the emulated IPU (default: all 1472)"
    )
    run.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the random inputs (default %(default)s)"
    )
    run.add_argument(
        "--input",
        metavar="FILE.npz",
        help="real inputs instead: arrays query_L, key_L, value_L of layer L (see bench/capture.py); they "
        "bring their batch, heads and head_dim",
    )
    run.add_argument(
        "--layer", type=int, default=None, metavar="L", help="which layer of --input (default: the first)"
    )
    run.add_argument(
        "--reps", type=int, default=10, metavar="N", help="timed repetitions, on an IPU (default %(default)s)"
    )
    run.add_argument(
        "--warmup",
        type=int,
        default=2,
        metavar="N",
        help="repetitions before, on an IPU (default %(default)s)",
    )
    run.add_argument(
        "--inner-reps",
        type=int,
        default=64,
        metavar="N",
        help="queries in one launch, on an IPU (default %(default)s)",
    )
    run.add_argument("--json", metavar="FILE", help="append the results as JSON lines")
    run.add_argument(
        "--check",
        dest="check",
        action="store_true",
        default=True,
        help="compare with the reference (default)",
    )
    run.add_argument(
        "--no-check", dest="check", action="store_false", help="do not compare; the results say so"
    )
    run.add_argument(
        "--plan-only",
        action="store_true",
        help="run nothing: tiles, memory, bytes and modelled time of each kernel (see sparq_ipu.plan)",
    )
    run.add_argument(
        "--ipus",
        type=int,
        default=1,
        metavar="N",
        help="with --plan-only: IPUs that share KV heads, then batch, as replicas (default %(default)s)",
    )
    run.add_argument("--stages", action="store_true", help="print where the modelled time goes, by stage")
    arguments = parser.parse_args(argv)
    argv = sys.argv[1:] if argv is None else argv
    arguments.command = "python bench/ipu_sparq.py " + " ".join(shlex.quote(a) for a in argv)
    arguments.S_given = arguments.S is not None
    for name, default in SHAPE.items():
        value = getattr(arguments, name)
        if value is None:
            setattr(arguments, name, default)
        elif arguments.input and name != "S":
            parser.error(f"--{name.replace('_', '-')} must be left to the file of --input, got {value}")
    if arguments.input and arguments.kv_heads is not None:
        parser.error(f"--kv-heads must be left to the file of --input, got {arguments.kv_heads}")
    if arguments.plan_only and arguments.input:
        parser.error(f"--input must not be given with --plan-only, got {arguments.input}")
    for name, least in (
        ("tiles", 0),
        ("seed", 0),
        ("reps", 1),
        ("warmup", 0),
        ("inner_reps", 1),
        ("ipus", 1),
    ):
        if getattr(arguments, name) < least:
            parser.error(
                f"--{name.replace('_', '-')} must be at least {least}, got {getattr(arguments, name)}"
            )
    if arguments.kv_heads is None:
        arguments.kv_heads = arguments.heads
    return arguments


class Progress:
    """Lines on stderr: which step, how long it took."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._step: str | None = None

    def step(self, text: str | None) -> None:
        now = time.perf_counter()
        if self._step is not None:
            print(f"\r{self._step} {now - self._start:.1f} s", file=sys.stderr, flush=True)
        self._step, self._start = text, now
        if text is not None:
            print(f"{text} ...", end="", file=sys.stderr, flush=True)


def choose_device(device: str) -> str:
    if device == "auto":
        return "emulator" if _core.device_unavailable("ipu") else "ipu"
    reason = _core.device_unavailable(device)
    if reason:
        raise SystemExit(f"ipu_sparq.py: device {device} is not available here: {reason}")
    return device


class Expected:
    """What the reference says: exact (to the bit) and in float64. Worked out when first needed."""

    def __init__(self, inputs: Inputs, settings: dict[str, Any]):
        self._inputs = inputs
        self._settings = settings
        self._known: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def of(self, kernel: str) -> tuple[np.ndarray, np.ndarray]:
        name = "sparq" if kernel.startswith("sparq") else "dense"
        if name not in self._known:
            qkv = self._inputs.query, self._inputs.key, self._inputs.value
            if name == "dense":
                self._known[name] = exact.dense_attention(*qkv), ideal.dense_attention(*qkv)
            else:
                self._known[name] = (
                    exact.sparq_attention(*qkv, **self._settings),
                    ideal.sparq_attention(*qkv, **self._settings),
                )
        return self._known[name]


def new_row(kernel: str, device: str, inputs: Inputs, a: argparse.Namespace) -> dict[str, Any]:
    batch, n_heads, head_dim = inputs.query.shape
    n_kv_heads, seq_len = inputs.key.shape[1:3]
    is_sparq = kernel.startswith("sparq")
    top_k = min(a.k, seq_len)  # all that there is to read
    dense = transfers.dense_elements(seq_len, head_dim)
    return {
        "kernel": kernel,
        "device": device,
        "batch": batch,
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads,
        "head_dim": head_dim,
        "seq_len": seq_len,
        "rank": a.r if is_sparq else None,
        "top_k": a.k if is_sparq else None,
        "n_local": a.local if is_sparq else None,
        "mean_value": not a.no_mean_value if is_sparq else None,
        "seconds_per_query": None,
        "seconds_spread": None,
        "time_source": "measured" if device == "ipu" else "modelled",
        "streamed_bytes": None,
        # elements of K and V that one query moves, by the paper's formula, for one KV head
        "transfer_elements": transfers.sparq_elements(seq_len, head_dim, a.r, top_k) if is_sparq else dense,
        "transfer_elements_dense": dense,
        "theoretical_speedup": transfers.theoretical_speedup(seq_len, head_dim, a.r, top_k)
        if is_sparq
        else 1.0,
        "speedup_vs_dense_streaming": None,
        "max_tile_bytes": None,
        "bit_exact": None,
        "max_abs_error_vs_float64": None,
        "input": a.input or "random",
        "seed": a.seed,
        "git": git_revision(),
        "command": a.command,
        "error": None,
    }


def run_kernel(
    row: dict[str, Any],
    inputs: Inputs,
    settings: dict[str, Any],
    expected: Expected,
    a: argparse.Namespace,
    progress: Progress,
    label: str,
) -> None:
    """Compile, fill the cache, run, check, and only then time; results go into `row`."""
    kernel, on_ipu = row["kernel"], row["device"] == "ipu"
    progress.step(f"{label} compile")
    session = _core.Session(
        _core.Shape(row["batch"], row["n_heads"], row["n_kv_heads"], row["head_dim"], row["seq_len"]),
        dense_sram=kernel == "dense-sram",
        dense_streaming=kernel == "dense-streaming",
        sparq=[tuple(settings.values())] if kernel == "sparq-streaming" else [],
        append=False,
        device=row["device"],
        n_tiles=a.tiles,
        repeats=a.inner_reps if on_ipu else 0,
    )
    progress.step(f"{label} fill the cache")
    session.write(inputs.key, inputs.value, [row["seq_len"]] * row["batch"])

    def run(repeated: bool = False) -> np.ndarray:
        return (
            session.sparq(0, inputs.query, repeated)
            if kernel.startswith("sparq")
            else session.dense(inputs.query, repeated)
        )

    progress.step(f"{label} run")
    output = run()
    if a.check:
        progress.step(f"{label} check against the reference")
        exact_output, ideal_output = expected.of(kernel)
        row["bit_exact"] = bool(np.array_equal(output.view(np.uint16), exact_output.view(np.uint16)))
        row["max_abs_error_vs_float64"] = float(np.max(np.abs(output.astype(np.float64) - ideal_output)))
        if not row["bit_exact"]:
            n = int((output.view(np.uint16) != exact_output.view(np.uint16)).sum())
            row["error"] = f"{n} of {output.size} outputs differ from the reference"
    if on_ipu:
        progress.step(f"{label} time")
        seconds = []
        for i in range(a.warmup + a.reps):
            start = time.perf_counter()
            run(repeated=True)
            if i >= a.warmup:
                seconds.append((time.perf_counter() - start) / a.inner_reps)
        row["seconds_per_query"] = float(np.median(seconds))
        row["seconds_spread"] = [min(seconds), max(seconds)]
    else:
        report = _core.emulator_last_run(session, {"tiles": a.tiles} if a.tiles else {})
        row["seconds_per_query"] = report["seconds"]["total"]
        row["seconds_by_category"] = report["seconds"]
        row["streamed_bytes"] = sum(
            s["bytes"] * s["executions"] for s in report["steps"] if s["kind"] == "remote-read"
        )
        row["max_tile_bytes"] = _core.emulator_memory(session)["bytes"]
        row["stages"] = [(s["name"], s["executions"], s["seconds"]["total"]) for s in report["steps"]]
    progress.step(None)


#: columns of the table: heading, width, text of a row
COLUMNS = (
    ("kernel", 16, lambda r: r["kernel"]),
    ("ms", 18, lambda r: _number(r["seconds_per_query"], ".4f", 1e3, " " + r["time_source"])),
    ("MB streamed", 12, lambda r: _number(r["streamed_bytes"], ".2f", 1e-6)),
    ("speed-up", 9, lambda r: _number(r["speedup_vs_dense_streaming"], ".2f", 1, "x")),
    ("in theory", 9, lambda r: _number(r["theoretical_speedup"], ".2f", 1, "x")),
    ("KiB/tile", 9, lambda r: _number(r["max_tile_bytes"], ".1f", 1 / 1024)),
    ("bit-exact", 10, lambda r: {True: "yes", False: "NO", None: "unchecked"}[r["bit_exact"]]),
    ("max |error|", 12, lambda r: _number(r["max_abs_error_vs_float64"], ".2e")),
)


def _number(value: float | None, form: str, factor: float = 1.0, unit: str = "") -> str:
    return "-" if value is None else format(value * factor, form) + unit


def print_table(rows: list[dict[str, Any]]) -> None:
    header = " ".join(f"{heading:>{width}}" for heading, width, _ in COLUMNS)
    print(header)
    print("-" * len(header))
    for row in rows:
        print(" ".join(f"{text(row):>{width}}" for _, width, text in COLUMNS))
        if row["error"]:
            print(f"  error: {row['error']}")
    if rows[0]["time_source"] == "modelled":
        print("Modelled for one Bow IPU from what the emulator counted; nothing was measured on an IPU.")
    print("speed-up: against dense-streaming. in theory: elements moved, dense / SparQ.")
    print("max |error|: against the same attention in float64.")


def print_plans(a: argparse.Namespace) -> int:
    """Instead of running: what each kernel would do. Returns the exit status."""
    kernels = KERNELS if a.kernel == "all" else (a.kernel,)
    status = 0
    for kernel in kernels:
        try:
            planned = sparq_ipu.plan(
                a.B,
                a.heads,
                a.kv_heads,
                a.head_dim,
                a.S,
                kernel=kernel,
                rank=a.r,
                top_k=a.k,
                n_local=a.local,
                mean_value=not a.no_mean_value,
                n_ipus=a.ipus,
                n_tiles=a.tiles,
            )
        except ValueError as error:
            print(f"{kernel}: {error}\n")
            status = 1
            continue
        print(f"{planned}\n")
        if a.json:
            with open(a.json, "a") as file:
                file.write(json.dumps({**planned.row(), "command": a.command}) + "\n")
    return status


def print_stages(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print(f"\n{row['kernel']}: modelled time by stage")
        for name, executions, seconds in row.get("stages", []):
            print(f"  {name:<40} x{executions:<4} {seconds * 1e6:>12.2f} us")


def main(argv: list[str] | None = None) -> int:
    a = parse_arguments(argv)
    if a.plan_only:
        return print_plans(a)
    if a.ipus != 1:
        print(f"ipu_sparq.py: --ipus must be 1 without --plan-only, got {a.ipus}", file=sys.stderr)
        return 2
    device = choose_device(a.device)
    progress = Progress()
    try:
        progress.step("inputs")
        if a.input:
            inputs = load_inputs(Path(a.input), a.layer, a.S if a.S_given else None)
        else:
            checks.check_cache("ipu_sparq", a.B, a.kv_heads, a.head_dim, a.S)
            inputs = random_inputs(a.B, a.heads, a.kv_heads, a.S, a.head_dim, a.seed)
        checks.check_sparq_settings("ipu_sparq", a.r, a.k, a.local, inputs.query.shape[2])
        progress.step(None)
    except (ValueError, OSError) as error:
        print(f"\nipu_sparq.py: {error}", file=sys.stderr)
        return 2
    settings = dict(rank=a.r, top_k=a.k, n_local=a.local, mean_value=not a.no_mean_value)
    expected = Expected(inputs, settings)
    kernels = KERNELS if a.kernel == "all" else (a.kernel,)
    rows = []
    for i, kernel in enumerate(kernels):
        row = new_row(kernel, device, inputs, a)
        try:
            run_kernel(row, inputs, settings, expected, a, progress, f"[{i + 1}/{len(kernels)}] {kernel}:")
        except Exception as error:  # a kernel that can not run is a result too: its row says why
            progress.step(None)
            row["error"] = f"{type(error).__name__}: {error}"
        if row["bit_exact"] is False:
            row["seconds_per_query"] = None  # no time for a wrong result
        rows.append(row)
    dense = next((r["seconds_per_query"] for r in rows if r["kernel"] == "dense-streaming"), None)
    for row in rows:
        if dense and row["seconds_per_query"]:
            row["speedup_vs_dense_streaming"] = dense / row["seconds_per_query"]
    batch, n_heads, head_dim = inputs.query.shape
    seq_len, n_kv_heads = inputs.key.shape[2], inputs.key.shape[1]
    print(
        f"device {device}, batch {batch}, {n_heads} heads, {n_kv_heads} KV heads, head_dim {head_dim}, ",
        end="",
    )
    print(f"seq_len {seq_len}, rank {a.r}, top_k {a.k}, n_local {a.local}", end="")
    print(", no mean value" if a.no_mean_value else "")
    print_table(rows)
    if a.stages:
        print_stages(rows)
    if a.json:
        with open(a.json, "a") as file:
            for row in rows:
                file.write(json.dumps({key: value for key, value in row.items() if key != "stages"}) + "\n")
    return 1 if any(row["error"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
