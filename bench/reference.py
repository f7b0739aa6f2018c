# SPDX-License-Identifier: Apache-2.0
"""Time and memory of the NumPy reference: dense and SparQ attention of one decode step, exact twin.

Every result is checked against the float64 twin before it is timed. stdout: one JSON line for each kernel;
stderr: progress and a table made from those lines.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Callable

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
try:
    from sparq_reference import checks, exact, ideal
except ImportError:  # not installed: from the tree
    sys.path.insert(0, str(ROOT / "reference"))
    from sparq_reference import checks, exact, ideal

KERNELS = ("dense", "sparq")
#: largest accepted |exact - float64|, as a share of the largest |value|: fp16 rounds at 2**-11. Coarse on
#: purpose; the derived bound (docs/error_bound.md) is for the tests
TOLERANCE = 2.0**-10


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Command line; the defaults are the sizes of arXiv:2312.04985v6, section 6.1."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python bench/reference.py --seq-len 4096 --kernel sparq --reps 20 --json out.jsonl",
    )
    for name, default, text in (
        ("batch", 1, "sequences"),
        ("heads", 32, "query heads"),
        ("kv-heads", None, "key and value heads; default: as many as query heads"),
        ("head-dim", 128, "components of a head, a multiple of 8"),
        ("seq-len", 16384, "cached positions of each sequence"),
        ("rank", 32, "query components for the approximate scores (the paper's r)"),
        ("top-k", 128, "positions attended to (the paper's k)"),
        ("local", 0, "how many of them are the last positions (the paper's l)"),
        ("reps", 5, "timed runs"),
        ("warmup", 1, "runs before them"),
        ("seed", 0, "of the random inputs, N(0, 1)"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text} [{default}]")
    parser.add_argument("--kernel", choices=(*KERNELS, "all"), default="all", help="what to run [all]")
    parser.add_argument("--no-check", dest="check", action="store_false", help="skip the float64 comparison")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the JSON lines here too; must not exist"
    )
    args = parser.parse_args(arguments)
    args.kv_heads = args.heads if args.kv_heads is None else args.kv_heads
    args.command = sys.argv[1:] if arguments is None else arguments
    if args.json and args.json.exists():
        parser.error(f"--json must name a new file, got {args.json}")
    for name, least in (("heads", 1), ("reps", 1), ("warmup", 0), ("seed", 0)):
        if getattr(args, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(args, name)}")
    try:
        checks.check_cache("reference", args.batch, args.kv_heads, args.head_dim, args.seq_len)
        if args.kernel != "dense":
            checks.check_sparq_settings("reference", args.rank, args.top_k, args.local, args.head_dim)
    except ValueError as error:
        parser.error(str(error))
    if args.heads % args.kv_heads:
        parser.error(f"--heads must be a multiple of --kv-heads={args.kv_heads}, got {args.heads}")
    return args


def progress(text: str) -> None:
    """One line on stderr."""
    print(text, file=sys.stderr, flush=True)


def git(*arguments: str) -> str | None:
    """Output of git in this tree, or None without one."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def make_inputs(args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """query, key, value of N(0, 1), float16."""
    rng = np.random.default_rng(args.seed)
    shape = (args.batch, args.kv_heads, args.seq_len, args.head_dim)
    with np.errstate(under="ignore"):
        query = rng.standard_normal((args.batch, args.heads, args.head_dim), np.float32).astype(np.float16)
        key, value = (rng.standard_normal(shape, np.float32).astype(np.float16) for _ in range(2))
    return query, key, value


def float64_error(
    args: argparse.Namespace, kernel: str, tensors: tuple[np.ndarray, ...], got: np.ndarray
) -> float:
    """Largest difference from the ideal twin; for SparQ with the selections of the exact one."""
    if kernel == "dense":
        return float(np.abs(got - ideal.dense_attention(*tensors)).max())
    query, key, value = tensors
    steps = exact.sparq_steps(*tensors, rank=args.rank, top_k=args.top_k, n_local=args.local)
    inv_tau = ideal.inverse_temperature(query, steps.components)
    scores = ideal.approx_scores(query, key, steps.components, inv_tau)
    weights, weight_sum, _ = ideal.softmax_weights(scores)
    attended = ideal.gathered_attention(query, key, value, steps.positions, steps.counts)
    alpha = ideal.selected_share(weights, weight_sum, steps.positions)
    lengths = np.full(args.batch, args.seq_len)
    expected = ideal.combine(attended, alpha, ideal.mean_value(ideal.sum_values(value), lengths))
    return float(np.abs(got - expected).max())


def measure(
    args: argparse.Namespace, kernel: str, run: Callable[[], np.ndarray], tensors: tuple[np.ndarray, ...]
) -> dict:
    """One row: checked, timed, then once more for memory, because tracing slows."""
    row = dict(
        schema=1, op=f"exact.{kernel}_attention", target="numpy", numpy=np.__version__, batch=args.batch,
        n_heads=args.heads, n_kv_heads=args.kv_heads, head_dim=args.head_dim, seq_len=args.seq_len,
    )  # fmt: skip
    if kernel == "sparq":
        row.update(rank=args.rank, top_k=args.top_k, n_local=args.local, mean_value=True)
    error = None
    if args.check:
        progress(f"{kernel}: check against float64")
        error = float64_error(args, kernel, tensors, run())
        limit = TOLERANCE * float(np.abs(tensors[2]).max())
        row["error"] = None if error <= limit else f"differs from float64 by {error}, more than {limit}"
    row.update(checked="float64" if args.check else None, max_abs_error_vs_float64=error)
    for i in range(args.warmup):
        progress(f"{kernel}: warm-up {i + 1} of {args.warmup}")
        run()
    seconds = []
    for i in range(args.reps):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
        progress(f"{kernel}: run {i + 1} of {args.reps}, {seconds[-1]:.3f} s")
    tracemalloc.start()
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    median = statistics.median(seconds)
    row.update(
        n_runs=args.reps, seconds=seconds, median_seconds=median,
        mad_seconds=statistics.median(abs(s - median) for s in seconds), time_source="measured",
        input_bytes=sum(a.nbytes for a in tensors), peak_extra_bytes=peak, seed=args.seed,
        git=git("rev-parse", "--short", "HEAD"), dirty=bool(git("status", "--porcelain", "--", "reference")),
        repro=shlex.join(["python", "bench/reference.py", *args.command]),
    )  # fmt: skip
    return row


def main(arguments: list[str] | None = None) -> int:
    """Run; 0 if every check held, 1 if one did not, 2 for a wrong command line."""
    args = parse(arguments)
    progress("make inputs")
    tensors = make_inputs(args)
    settings = dict(rank=args.rank, top_k=args.top_k, n_local=args.local)
    runs = {
        "dense": lambda: exact.dense_attention(*tensors),
        "sparq": lambda: exact.sparq_attention(*tensors, **settings),
    }
    rows = []
    for kernel in KERNELS if args.kernel == "all" else (args.kernel,):
        try:
            rows.append(measure(args, kernel, runs[kernel], tensors))
        except ValueError as error:  # of the reference: sizes it refuses
            progress(f"error: {error}")
            return 2
        line = json.dumps(rows[-1])
        print(line, flush=True)
        if args.json:
            with args.json.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
    progress(f"{'op':24} {'median s':>9} {'MAD s':>8} {'extra MB':>9} {'|error|':>9}")
    for row in rows:
        error = row["max_abs_error_vs_float64"]
        progress(
            f"{row['op']:24} {row['median_seconds']:9.3f} {row['mad_seconds']:8.3f} "
            f"{row['peak_extra_bytes'] / 1e6:9.1f} {'-' if error is None else format(error, '9.1e')}"
        )
    return int(any(row.get("error") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
