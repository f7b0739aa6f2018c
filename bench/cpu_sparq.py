# SPDX-License-Identifier: Apache-2.0
"""One decode step of attention on a CPU: the kernels of device "cpu", PyTorch, and the memory's own speed.

    python bench/cpu_sparq.py --S 16384 --r 32 --k 128

In one run, interleaved: our dense and SparQ attention; PyTorch dense attention through
scaled_dot_product_attention and in eager steps, in float32, bfloat16 and float16; the SparQ formulas in
PyTorch; and a plain vectorised sum over as many bytes as each of ours must read, by the same threads: the
floor of a memory-bound kernel. Ours are compared with the reference bit for bit before anything is timed.
PyTorch is optional. stdout: one JSON line for each kernel and length; stderr: progress and a table made from
those lines.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np
from inputs import Inputs, git_revision, random_inputs

import sparq_ipu
from sparq_ipu import _cpu
from sparq_reference import checks, exact

DTYPES = ("float32", "bfloat16", "float16")
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
#: queries that the runs take turns with, so that one does not find the columns of K that the last one read
N_QUERIES = 4
#: memory of the plain sum: several times what caches hold
STREAM_BYTES = 512 << 20


class WrongResult(Exception):
    """A result that differs from the reference."""


class Kernel(NamedTuple):
    """One thing to time."""

    name: str
    run: Callable[[int], Any]  #: of the number of the run
    n_bytes: int  #: that it must read
    wake: Callable[[], Any]  #: a small call that wakes its threads, not timed
    checked: str | None  #: "bitwise", or None
    max_abs_difference: float | None = None  #: from our dense attention, or from our SparQ


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Examples:\n"
        "  python bench/cpu_sparq.py --S 4096 16384 65536 --plot sparq.png\n"
        "  python bench/cpu_sparq.py --heads 32 --kv-heads 8 --B 4 --kernels ours\n"
        "  SPARQ_CPU_ISA=avx2 python bench/cpu_sparq.py --threads 1 --kernels ours\n"
        "A busy machine shows in the spread (MAD); best times are in the JSON lines.\n"
        "Exit status: 0 ok, 1 a result differs, 2 bad usage.",
    )
    for name, default, text in (
        ("B", 1, "batch"),
        ("heads", 32, "query heads"),
        ("kv-heads", None, "KV heads; fewer than --heads: grouped-query attention (default: --heads)"),
        ("head-dim", 128, "components of a head"),
        ("r", 32, "components of the query used to score positions"),
        ("k", 128, "positions attended to"),
        ("local", 0, "of these, the most recent ones that are always taken"),
        ("threads", None, "threads, ours and PyTorch's (default: as device cpu chooses)"),
        ("reps", 15, "timed runs of each kernel"),
        ("warmup", 3, "runs before them"),
        ("seed", 0, "of the random inputs, N(0, 1)"),
    ):
        text = text if default is None else f"{text} (default {default})"
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=text)
    parser.add_argument(
        "--S", type=int, nargs="+", default=[16384], metavar="N", help="cached positions (default 16384)"
    )
    parser.add_argument(
        "--kernels", choices=("ours", "all"), default="all", help="with PyTorch or without (default all)"
    )
    parser.add_argument("--no-check", dest="check", action="store_false", help="skip the bitwise comparison")
    parser.add_argument("--json", type=Path, metavar="FILE", help="JSON lines here too; must not exist")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot of times over S (needs matplotlib)")
    args = parser.parse_args(argv)
    args.command = sys.argv[1:] if argv is None else argv
    args.kv_heads = args.heads if args.kv_heads is None else args.kv_heads
    args.threads = _cpu.default_threads() if args.threads is None else args.threads
    if args.json and args.json.exists():
        parser.error(f"--json must name a new file, got {args.json}")
    for name, least in (("heads", 1), ("threads", 1), ("reps", 1), ("warmup", 0), ("seed", 0)):
        if getattr(args, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(args, name)}")
    try:
        checks.check_sparq_settings("cpu_sparq", args.r, args.k, args.local, args.head_dim)
        for seq_len in args.S:
            checks.check_cache("cpu_sparq", args.B, args.kv_heads, args.head_dim, seq_len)
    except ValueError as error:
        parser.error(str(error))
    if args.heads % args.kv_heads:
        parser.error(f"--heads must be a multiple of --kv-heads={args.kv_heads}, got {args.heads}")
    return args


def progress(text: str) -> None:
    """One line on stderr."""
    print(text, file=sys.stderr, flush=True)


def processor() -> str:
    """Name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def needed_bytes(args: argparse.Namespace, seq_len: int) -> dict[str, int]:
    """fp16 bytes of the cache that dense and SparQ attention must read."""
    pairs = args.B * args.kv_heads
    dense = 2 * seq_len * args.head_dim
    sparq = seq_len * args.r + 2 * args.k * args.head_dim if args.k < seq_len else dense
    return {"dense": 2 * pairs * dense, "sparq": 2 * pairs * sparq}


def our_kernels(args: argparse.Namespace, inputs: Inputs, queries: list[np.ndarray]) -> list[Kernel]:
    """Ours, checked, and the plain sums."""
    seq_len = inputs.key.shape[2]
    # Without the look for NaN in the query, which is Python's and takes as long for any cache.
    options = dict(device="cpu", n_threads=args.threads, check_finite=False)
    cache = sparq_ipu.KVCache(args.B, args.kv_heads, args.head_dim, seq_len, **options)
    cache.append(inputs.key, inputs.value)
    small = sparq_ipu.KVCache(1, 2 * args.threads, 8, 64, **options)
    small.append(*[np.ones((1, 2 * args.threads, 64, 8), np.float16)] * 2)
    small_query = np.ones((1, 2 * args.threads, 8), np.float16)

    def wake() -> None:
        sparq_ipu.dense_attention(small_query, small)

    settings = dict(rank=args.r, top_k=args.k, n_local=args.local)
    runs = {
        "dense": lambda i: sparq_ipu.dense_attention(queries[i % N_QUERIES], cache),
        "sparq": lambda i: sparq_ipu.sparq_attention(queries[i % N_QUERIES], cache, **settings),
    }
    n_bytes = needed_bytes(args, seq_len)
    kernels = []
    for name, run in runs.items():
        if args.check:
            progress(f"S={seq_len}: check {name} against the reference")
            if name == "dense":
                expected = exact.dense_attention(queries[0], inputs.key, inputs.value)
            else:
                expected = exact.sparq_attention(queries[0], inputs.key, inputs.value, **settings)
            if not (run(0).view(np.uint16) == expected.view(np.uint16)).all():
                raise WrongResult(f"{name}: the result differs from the reference")
        kernels.append(Kernel(name, run, n_bytes[name], wake, "bitwise" if args.check else None))

    memory = _cpu.StreamSum(STREAM_BYTES, n_threads=args.threads)
    for name in runs:
        length = max(1, min(n_bytes[name], STREAM_BYTES) // 4096) * 4096
        places = STREAM_BYTES // length

        def stream(i: int, length: int = length, places: int = places) -> None:
            memory.run(i % places * length, length)

        kernels.append(Kernel(f"stream-{name}", stream, length, wake, None))
    return kernels


def torch_sparq(torch: Any, query: Any, key: Any, key_columns: Any, value: Any, mean: Any, args: Any) -> Any:
    """SparQ attention (arXiv:2312.04985, Algorithm 1) in PyTorch.

    query (batch, n_kv_heads, group_size, head_dim); key, value (batch, n_kv_heads, seq_len, head_dim);
    key_columns the numbers of key as (batch, n_kv_heads, head_dim, seq_len)
    mean (batch, n_kv_heads, 1, head_dim)
    """
    seq_len, head_dim = key.shape[-2:]
    magnitude = query.abs()
    components = magnitude.sum(2, keepdim=True).topk(args.r, -1).indices
    some = query.gather(-1, components.expand(-1, -1, query.shape[2], -1))
    share = some.abs().sum(-1, keepdim=True) / magnitude.sum(-1, keepdim=True)
    columns = key_columns.gather(2, components.transpose(-1, -2).expand(-1, -1, -1, seq_len))
    weights = (some @ columns / (head_dim * share).sqrt()).softmax(-1)
    merit = weights.sum(2)
    if args.local:
        merit[..., seq_len - args.local :] = float("inf")
    positions = merit.topk(min(args.k, seq_len), -1).indices
    rows = positions[..., None].expand(-1, -1, -1, head_dim)
    attended = torch.nn.functional.scaled_dot_product_attention(
        query, key.gather(2, rows), value.gather(2, rows)
    )
    alpha = weights.gather(-1, positions[:, :, None].expand(-1, -1, query.shape[2], -1)).sum(-1, keepdim=True)
    return alpha * attended + (1 - alpha) * mean


def torch_kernels(
    args: argparse.Namespace, inputs: Inputs, queries: list[np.ndarray], ours: dict[str, np.ndarray]
) -> list[Kernel]:
    """PyTorch in each dtype; grouped heads as (batch, n_kv_heads, group_size, head_dim) queries."""
    import torch

    torch.set_num_threads(args.threads)
    seq_len = inputs.key.shape[2]
    idle = torch.ones(1 << 17)
    kernels = []
    for dtype in DTYPES:
        progress(f"S={seq_len}: prepare PyTorch in {dtype}")
        convert = dict(dtype=getattr(torch, dtype))
        key, value = (torch.from_numpy(x).to(**convert) for x in (inputs.key, inputs.value))
        columns = key.transpose(-1, -2).contiguous()
        mean = value.float().mean(2, keepdim=True).to(**convert)
        grouped = (args.B, args.kv_heads, -1, args.head_dim)
        asked = [torch.from_numpy(q).reshape(grouped).to(**convert) for q in queries]
        scale = args.head_dim**-0.5

        def sdpa(i: int, q: Any = asked, k: Any = key, v: Any = value) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(q[i % N_QUERIES], k, v)

        def eager(i: int, q: Any = asked, k: Any = key, v: Any = value, scale: float = scale) -> Any:
            return ((q[i % N_QUERIES] @ k.transpose(-1, -2)) * scale).softmax(-1) @ v

        def sparq(
            i: int, q: Any = asked, k: Any = key, c: Any = columns, v: Any = value, m: Any = mean
        ) -> Any:
            return torch_sparq(torch, q[i % N_QUERIES], k, c, v, m, args)

        fp16_bytes = needed_bytes(args, seq_len)
        for name, run, same in (
            ("sdpa", sdpa, "dense"),
            ("eager", eager, "dense"),
            ("sparq", sparq, "sparq"),
        ):
            result = run(0).reshape(queries[0].shape).float().numpy()
            kernels.append(
                Kernel(
                    f"torch-{name}-{dtype}",
                    run,
                    fp16_bytes[same] * DTYPE_BYTES[dtype] // 2,
                    lambda: idle + 1,
                    None,
                    float(np.abs(result - ours[same]).max()),
                )
            )
    return kernels


def measure(args: argparse.Namespace, kernels: list[Kernel], seq_len: int) -> dict[str, list[float]]:
    """Seconds of every run: one of each kernel, then the next of each, so that all meet the same noise."""
    seconds: dict[str, list[float]] = {kernel.name: [] for kernel in kernels}
    for i in range(args.warmup + args.reps):
        progress(f"S={seq_len}: run {i + 1} of {args.warmup + args.reps}")
        for kernel in kernels:
            time.sleep(0.005)  # threads of the last kernel stop spinning
            kernel.wake()
            start = time.perf_counter()
            kernel.run(i)
            elapsed = time.perf_counter() - start
            if i >= args.warmup:
                seconds[kernel.name].append(elapsed)
    return seconds


def rows_of(args: argparse.Namespace, seq_len: int) -> list[dict[str, Any]]:
    """Check and time everything at one length."""
    progress(f"S={seq_len}: make inputs")
    inputs = random_inputs(args.B, args.heads, args.kv_heads, seq_len, args.head_dim, args.seed)
    rng = np.random.default_rng(args.seed + 1)
    queries = [inputs.query]
    for _ in range(N_QUERIES - 1):
        queries.append(rng.standard_normal(inputs.query.shape, dtype=np.float32).astype(np.float16))
    kernels = our_kernels(args, inputs, queries)
    if args.kernels == "all":
        try:
            ours = {kernel.name: kernel.run(0).astype(np.float32) for kernel in kernels[:2]}
            kernels += torch_kernels(args, inputs, queries, ours)
        except ImportError as error:
            progress(f"without PyTorch: {error}")
    seconds = measure(args, kernels, seq_len)

    median = {name: statistics.median(times) for name, times in seconds.items()}
    fastest_dense = min(
        (median[name] for name in median if name.startswith(("torch-sdpa", "torch-eager"))), default=None
    )
    best = {name: min(times) for name, times in seconds.items()}
    n_bytes = {kernel.name: kernel.n_bytes for kernel in kernels}
    rows = []
    for kernel in kernels:
        times, middle = seconds[kernel.name], median[kernel.name]
        rows.append(
            dict(
                schema=1, kernel=kernel.name, device="cpu", processor=processor(), isa=isa_in_use(),
                n_threads=args.threads, batch=args.B, n_heads=args.heads, n_kv_heads=args.kv_heads,
                head_dim=args.head_dim, seq_len=seq_len, rank=args.r, top_k=args.k, n_local=args.local,
                n_runs=args.reps, seconds=times, median_seconds=middle, min_seconds=min(times),
                mad_seconds=statistics.median(abs(t - middle) for t in times), time_source="measured",
                n_bytes=kernel.n_bytes, gb_per_s=kernel.n_bytes / middle / 1e9,
                ratio_to_stream=ratio_to_stream(kernel.name, median, n_bytes),
                min_ratio_to_stream=ratio_to_stream(kernel.name, best, n_bytes),
                speedup_vs_dense=median["dense"] / middle,
                speedup_vs_fastest_torch_dense=fastest_dense and fastest_dense / middle,
                checked=kernel.checked, max_abs_difference=kernel.max_abs_difference, seed=args.seed,
                git=git_revision(), repro=shlex.join(["python", "bench/cpu_sparq.py", *args.command]),
                error=None,
            )
        )  # fmt: skip
    return rows


def ratio_to_stream(name: str, times: dict[str, float], n_bytes: dict[str, int]) -> float:
    """Time of a kernel relative to that of the plain sum, in proportion to the bytes of the kernel."""
    floor = "stream-sparq" if name.endswith("sparq") or "sparq-" in name else "stream-dense"
    return times[name] / times[floor] * n_bytes[floor] / n_bytes[name]


def isa_in_use() -> str:
    """Instruction set of a cache made now."""
    return sparq_ipu.KVCache(1, 1, 8, 1, device="cpu")._backend.isa


def table(rows: list[dict[str, Any]]) -> None:
    """The rows for people."""
    progress(
        f"\n{'kernel':20} {'S':>6} {'median ms':>10} {'MAD ms':>8} {'best ms':>8} {'MB':>8} {'GB/s':>6} "
        f"{'x stream':>8} {'best x':>7} {'vs dense':>8} {'vs torch':>8}  checked"
    )
    for row in rows:
        faster = row["speedup_vs_fastest_torch_dense"]
        progress(
            f"{row['kernel']:20} {row['seq_len']:6} {row['median_seconds'] * 1e3:10.3f} "
            f"{row['mad_seconds'] * 1e3:8.3f} {row['min_seconds'] * 1e3:8.3f} {row['n_bytes'] / 1e6:8.1f} "
            f"{row['gb_per_s']:6.1f} {row['ratio_to_stream']:8.2f} {row['min_ratio_to_stream']:7.2f} "
            f"{row['speedup_vs_dense']:8.2f} {'-' if faster is None else format(faster, '8.2f'):>8}  "
            f"{row['checked'] or '-'}"
        )


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Median time over S, one line for each kernel."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), constrained_layout=True)
    needed = {(row["kernel"], row["seq_len"]): row["n_bytes"] for row in rows}
    colours = {"dense": "tab:blue", "sparq": "tab:red", "sdpa": "tab:purple", "eager": "tab:green"}
    markers = {"float32": "s", "bfloat16": "^", "float16": "v"}
    for name in dict.fromkeys(row["kernel"] for row in rows):
        mine = [row for row in rows if row["kernel"] == name]
        *kind, last = name.split("-")
        kind = [*kind, last] if last in colours else kind
        floor = kind[0] == "stream"
        # a sum over fewer bytes (the memory of the plain sums is limited) stands for all of them
        times = [
            row["median_seconds"] * (needed[kind[-1], row["seq_len"]] / row["n_bytes"] if floor else 1)
            for row in mine
        ]
        axes.loglog(
            [row["seq_len"] for row in mine],
            [seconds * 1e3 for seconds in times],
            label=f"plain sum of the bytes of {kind[-1]}" if floor else name,
            color=colours[kind[-1]],
            linestyle=":" if floor else "--" if kind[0] == "torch" else "-",
            linewidth=1 if len(kind) > 1 else 2.5,
            marker=markers.get(last, "o"),
        )
    first = rows[0]
    lengths = sorted({row["seq_len"] for row in rows})
    axes.set_xticks(lengths, [str(n) for n in lengths])
    axes.set_xticks([], minor=True)
    axes.grid(alpha=0.3)
    axes.set(
        xlabel="cached positions S",
        ylabel="median ms of one decode step",
        title=f"{first['processor']}, {first['n_threads']} threads, batch {first['batch']}, "
        f"{first['n_heads']}/{first['n_kv_heads']} heads, r={first['rank']}, k={first['top_k']}",
    )
    figure.legend(fontsize="small", loc="outside right center")
    figure.savefig(path)
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> int:
    """Run; 0 if every result held, 1 if one did not, 2 for sizes that are refused."""
    args = parse_arguments(argv)
    rows: list[dict[str, Any]] = []
    try:
        for seq_len in args.S:
            new = rows_of(args, seq_len)
            rows += new
            lines = "".join(json.dumps(row) + "\n" for row in new)
            print(lines, end="", flush=True)
            if args.json:
                with args.json.open("a", encoding="utf-8") as file:
                    file.write(lines)
    except WrongResult as error:
        progress(f"error: {error}")
        return 1
    except ValueError as error:
        progress(f"error: {error}")
        return 2
    table(rows)
    if args.plot:
        plot(rows, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
