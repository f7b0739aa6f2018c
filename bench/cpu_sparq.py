# SPDX-License-Identifier: Apache-2.0
"""One decode step of attention on a CPU: the kernels of device "cpu", PyTorch, and the memory's own speed.

    python bench/cpu_sparq.py --S 16384 --r 32 --k 128

In one run, interleaved: our dense attention; our SparQ attention with each key index of --index-bits ("sparq"
scores fp16 keys, "sparq-int8" and "sparq-int4" a quantised index); PyTorch dense attention through
scaled_dot_product_attention in float32, bfloat16 and float16; and a plain vectorised sum over as many bytes
as each of ours must read, by the same threads: the floor of a memory-bound kernel. Ours are compared with the
reference bit for bit before anything is timed. PyTorch is optional. stdout: one JSON line for each kernel and
length; stderr: progress and a table made from those lines.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import json
import sys
import time
from typing import Any, Callable

import numpy as np
from lib.common import (
    Column,
    CommandLine,
    Progress,
    Row,
    Workload,
    attention_functions,
    guarded,
    new_row,
    number,
    text_table,
    timing,
)
from lib.inputs import Inputs, random_inputs
from lib.origin import origin

from sparq_ipu import KVCache
from sparq_ipu.attention import attention
from sparq_ipu.backends import cpu
from sparq_reference import CacheSpec, exact, row_codes, transfers
from sparq_reference.checks import INDEX_BITS

_cpu: Any = importlib.import_module("sparq_ipu._cpu")

#: what is timed, by short name
FUNCTIONS = attention_functions()
#: which of them PyTorch computes too
DENSE = next(name for name, kernel in FUNCTIONS.items() if kernel.is_dense)
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
#: queries that the runs take turns with, so that one does not find the columns of K that the last one read
N_QUERIES = 4
#: memory of the plain sum: several times what caches hold
STREAM_BYTES = 512 << 20


class WrongResult(Exception):
    """A result that differs from the reference."""


@dataclasses.dataclass(frozen=True)
class Timed:
    """One thing to time."""

    #: "ours", "stream" (a plain sum) or "torch"
    by: str
    #: how it does it: one of ours, or of a way in PyTorch
    method: str
    #: the one of ours that computes the same; for a plain sum, that reads as much
    function: str
    #: with the key index it reads
    workload: Workload
    #: of the number of the run
    run: Callable[[int], Any]
    #: that it must read
    n_bytes: int
    #: a small call that wakes its threads, not timed
    wake: Callable[[], Any]
    dtype: str = "float16"
    #: largest difference of what PyTorch computes from ours
    max_abs_difference: float | None = None

    @property
    def name(self) -> str:
        """In rows: "dense", "stream-dense", "torch-sdpa-float32"."""
        if self.by == "ours":
            return self.method
        return "-".join((self.by, self.method, *([self.dtype] if self.by == "torch" else [])))


def command_line() -> CommandLine:
    """The flags; --help explains them."""
    cli = CommandLine(
        __file__,
        __doc__,
        "Examples:\n"
        "  python bench/cpu_sparq.py --S 4096 16384 65536\n"
        "  python bench/cpu_sparq.py --heads 32 --kv-heads 8 --B 4 --kernels ours\n"
        "  python bench/cpu_sparq.py --heads 2 --S 4096 --reps 200 --kernels ours   (all data in caches)\n"
        "  SPARQ_CPU_ISA=avx2 python bench/cpu_sparq.py --threads 1 --kernels ours\n"
        "A busy machine shows in the spread (MAD); best times are in the JSON lines (seconds_min).\n"
        "Exit status: 0 ok, 1 a result differs, 2 bad usage.",
        without=("index_components",),
        many=("capacity", "index_bits", "row_bits"),
        defaults={"index_bits": INDEX_BITS, "row_bits": [16]},
    )
    add = cli.run.add_argument
    text = "ours alone, or with those of PyTorch [all]"
    add("--kernels", choices=("ours", "all"), default="all", help=text)
    text = "threads, ours and PyTorch's [as device cpu chooses]"
    add("--threads", type=int, metavar="N", help=text)
    cli.add_run("the random inputs, N(0, 1)", reps=15, warmup=3)
    add("--no-check", dest="check", action="store_false", help="skip the bitwise comparison")
    return cli


def parse(cli: CommandLine, argv: list[str] | None) -> argparse.Namespace:
    """The arguments, checked; `workloads`: for each length, one for each key index and bits of rows."""
    a = cli.parse(argv)
    cli.at_least(a, threads=1)
    if a.threads is None:
        a.threads = _cpu.default_threads()
    a.index_bits = list(dict.fromkeys(a.index_bits or INDEX_BITS))
    a.row_bits = sorted(set(a.row_bits or [16]), reverse=True)
    workloads = cli.workloads(a, takes_settings=True)
    lengths = dict.fromkeys(w.seq_len for w in workloads)
    a.workloads = [[w for w in workloads if w.seq_len == length] for length in lengths]
    return a


@functools.lru_cache(maxsize=None)
def isa_in_use() -> str:
    """Instruction set of a cache made now."""
    return cpu.create("cpu", CacheSpec(1, 1, 8, 1), 1, cpu.Options())[0].isa


def needed_bytes(workload: Workload) -> int:
    """Bytes of the cache that attention must read."""
    spec, settings, seq_len = workload.spec, workload.settings, workload.seq_len
    of_row = transfers.row_bytes(spec.head_dim, spec.row_bits)
    if settings is None or settings.top_k >= seq_len:
        return spec.n_tasks * seq_len * of_row
    index = transfers.index_bytes(seq_len, settings.rank, spec.index_bits)
    return spec.n_tasks * (index + settings.top_k * of_row)


def our_name(function: str, workload: Workload) -> str:
    """Of a row: "dense", "sparq", "sparq-int4", "dense-rows8"."""
    bits = workload.spec.index_bits
    name = function if workload.settings is None or bits == 16 else f"{function}-int{bits}"
    return name if workload.spec.row_bits == 16 else f"{name}-rows8"


def our_kernels(
    a: argparse.Namespace,
    workloads: list[Workload],
    inputs: Inputs,
    queries: list[np.ndarray],
    progress: Progress,
) -> list[Timed]:
    """Ours, checked, and the plain sums."""
    # Without the look for NaN in the query, which is Python's and takes as long for any cache.
    options: dict[str, Any] = dict(device="cpu", n_threads=a.threads, check_finite=False)
    caches = []
    for workload in workloads:
        caches.append(KVCache(**dataclasses.asdict(workload.spec), **options))
        caches[-1].append(inputs.key, inputs.value)
    small = KVCache(1, 2 * a.threads, 8, 64, **options)
    small.append(*[np.ones((1, 2 * a.threads, 64, 8), np.float16)] * 2)
    small_query = np.ones((1, 2 * a.threads, 8), np.float16)

    def wake() -> None:
        attention(small_query, small)

    timed = []
    for function, kernel in FUNCTIONS.items():
        for whole, cache in zip(workloads, caches):
            workload, rows = whole.on(kernel), whole.spec.row_bits
            workload = dataclasses.replace(workload, spec=dataclasses.replace(workload.spec, row_bits=rows))
            name = our_name(function, workload)
            if name in (done.name for done in timed):  # dense attention reads no index
                continue

            def run(i: int, settings: Any = workload.settings, cache: KVCache = cache) -> np.ndarray:
                return attention(queries[i % N_QUERIES], cache, settings)

            if a.check:
                progress.step(f"S={workload.seq_len}: check {name} against the reference")
                held = (row_codes.round_rows(x, rows) for x in (inputs.key, inputs.value))
                expected = exact.attention(queries[0], *held, workload.settings, workload.spec)
                progress.step(None)
                if not np.array_equal(run(0).view(np.uint16), expected.view(np.uint16)):
                    raise WrongResult(f"{name}: the result differs from the reference")
            timed.append(Timed("ours", name, name, workload, run, needed_bytes(workload), wake))

    memory = _cpu.StreamSum(STREAM_BYTES, n_threads=a.threads)
    for mine in list(timed):
        length = max(1, min(mine.n_bytes, STREAM_BYTES) // 4096) * 4096
        places = STREAM_BYTES // length

        def stream(i: int, length: int = length, places: int = places) -> None:
            memory.run(i % places * length, length)

        timed.append(Timed("stream", mine.name, mine.name, mine.workload, stream, length, wake))
    return timed


def torch_kernels(
    a: argparse.Namespace,
    workload: Workload,
    inputs: Inputs,
    queries: list[np.ndarray],
    ours: list[Timed],
    progress: Progress,
) -> list[Timed]:
    """PyTorch's dense attention in each dtype; grouped heads as (batch, n_kv_heads, group_size, head_dim)
    queries.

    Raises: ImportError.
    """
    import torch

    torch.set_num_threads(a.threads)
    idle = torch.ones(1 << 17)

    def wake() -> Any:
        return idle + 1

    mine = next(timed for timed in ours if timed.workload.settings is None)
    spec = workload.spec
    plain = dataclasses.replace(
        mine.workload, spec=dataclasses.replace(mine.workload.spec, index_bits=16, row_bits=16)
    )
    expected = mine.run(0).astype(np.float32)
    grouped = (spec.batch, spec.n_kv_heads, -1, spec.head_dim)
    timed = []
    for dtype, item in DTYPE_BYTES.items():
        progress.step(f"S={workload.seq_len}: prepare PyTorch in {dtype}")
        kind = getattr(torch, dtype)
        key, value = (torch.from_numpy(x).to(kind) for x in (inputs.key, inputs.value))
        asked = [torch.from_numpy(q).reshape(grouped).to(kind) for q in queries]

        def run(i: int, asked: Any = asked, key: Any = key, value: Any = value) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(asked[i % N_QUERIES], key, value)

        result = run(0).reshape(queries[0].shape).float().numpy()
        difference = float(np.abs(result - expected).max())
        n_bytes = needed_bytes(plain) * item // 2
        timed.append(Timed("torch", "sdpa", mine.name, plain, run, n_bytes, wake, dtype, difference))
        progress.step(None)
    return timed


def measure(a: argparse.Namespace, kernels: list[Timed], seq_len: int, progress: Progress) -> dict[str, Row]:
    """Times of every kernel: one run of each, then the next of each, so that all meet the same noise."""
    seconds: dict[str, list[float]] = {kernel.name: [] for kernel in kernels}
    for i in range(a.warmup + a.reps):
        progress.step(f"S={seq_len}: run {i + 1} of {a.warmup + a.reps}")
        for kernel in kernels:
            time.sleep(0.005)  # threads of the last kernel stop spinning
            kernel.wake()
            start = time.perf_counter()
            kernel.run(i)
            elapsed = time.perf_counter() - start
            if i >= a.warmup:
                seconds[kernel.name].append(elapsed)
    progress.step(None)
    return {name: timing(times) for name, times in seconds.items()}


def rows_of(a: argparse.Namespace, workloads: list[Workload], progress: Progress) -> list[Row]:
    """Check and time everything at one length; `workloads` differ in bits of the key index and of rows."""
    workload = workloads[0]
    progress.step(f"S={workload.seq_len}: make inputs")
    inputs = random_inputs(workload.spec, workload.n_heads, a.seed)
    rng = np.random.default_rng(a.seed + 1)
    queries = [inputs.query]
    for _ in range(N_QUERIES - 1):
        queries.append(rng.standard_normal(inputs.query.shape, dtype=np.float32).astype(np.float16))
    kernels = our_kernels(a, workloads, inputs, queries, progress)
    ours = [kernel for kernel in kernels if kernel.by == "ours"]
    if a.kernels == "all":
        try:
            kernels += torch_kernels(a, workload, inputs, queries, ours, progress)
        except ImportError as error:
            progress.line(f"without PyTorch: {error}")
    times = measure(a, kernels, workload.seq_len, progress)
    median, best = (
        {name: t[column] for name, t in times.items()} for column in ("seconds_per_query", "seconds_min")
    )
    torch_dense = [median[k.name] for k in kernels if k.by == "torch" and k.workload.settings is None]
    floors = {k.function: k for k in kernels if k.by == "stream"}

    rows = []
    for kernel in kernels:
        floor, middle = floors[kernel.function], median[kernel.name]
        scale = floor.n_bytes / kernel.n_bytes
        row = new_row(
            "cpu_sparq",
            kernel.name,
            "cpu",
            kernel.workload,
            time_source="measured",
            seed=a.seed,
            command=a.command,
        )
        row.update(times[kernel.name])
        if kernel.by == "ours" and a.check:
            row.update(bit_exact=True, checked_against="reference")
        row.update(
            by=kernel.by,
            method=kernel.method,
            dtype=kernel.dtype,
            **origin(a.command),
            isa=isa_in_use(),
            n_threads=a.threads,
            n_bytes=kernel.n_bytes,
            gb_per_s=kernel.n_bytes / middle / 1e9,
            # relative to that of the plain sum, in proportion to the bytes of the kernel
            ratio_to_stream=middle / median[floor.name] * scale,
            min_ratio_to_stream=best[kernel.name] / best[floor.name] * scale,
            speedup_vs_dense=next(median[name] for name in (DENSE, f"{DENSE}-rows8") if name in median)
            / middle,
            speedup_vs_fastest_torch_dense=min(torch_dense) / middle if torch_dense else None,
            max_abs_difference=kernel.max_abs_difference,
        )
        rows.append(row)
    return rows


COLUMNS = (
    Column("kernel", -20, lambda r: r["kernel"]),
    Column("S", 6, lambda r: str(r["seq_len"])),
    Column("median ms", 10, lambda r: number(r["seconds_per_query"], ".3f", 1e3)),
    Column("MAD ms", 8, lambda r: number(r["seconds_mad"], ".3f", 1e3)),
    Column("best ms", 8, lambda r: number(r["seconds_min"], ".3f", 1e3)),
    Column("MB", 8, lambda r: number(r["n_bytes"], ".1f", 1e-6)),
    Column("GB/s", 6, lambda r: number(r["gb_per_s"], ".1f")),
    Column("x stream", 8, lambda r: number(r["ratio_to_stream"], ".2f")),
    Column("best x", 7, lambda r: number(r["min_ratio_to_stream"], ".2f")),
    Column("vs dense", 8, lambda r: number(r["speedup_vs_dense"], ".2f")),
    Column("vs torch", 8, lambda r: number(r["speedup_vs_fastest_torch_dense"], ".2f")),
    Column(" checked", -8, lambda r: " bitwise" if r["bit_exact"] else " -"),
)


def main(argv: list[str] | None = None) -> int:
    """Run; 0 if every result held, 1 if one did not, 2 for sizes that are refused."""
    cli = command_line()
    a = parse(cli, argv)
    progress = Progress()
    rows: list[Row] = []
    try:
        for workloads in a.workloads:
            new = rows_of(a, workloads, progress)
            rows += new
            print("".join(json.dumps(row) + "\n" for row in new), end="", flush=True)
            if a.json:
                a.json.append(new)
    except WrongResult as error:
        progress.line(f"error: {error}")
        return 1
    except ValueError as error:
        progress.line(f"error: {error}")
        return 2
    print("\n" + text_table(COLUMNS, rows), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
