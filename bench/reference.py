# SPDX-License-Identifier: Apache-2.0
"""Time and memory of the NumPy reference: dense and SparQ attention of one decode step, exact twin.

    python bench/reference.py --S 4096 --reps 20

Every result is checked against the float64 twin before it is timed. stdout: one JSON line for each kernel;
stderr: progress and a table made from those lines. Needs NumPy only, nothing built.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tracemalloc

import numpy as np
from lib.common import (
    NEWER_OPTIONS,
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

from sparq_reference import exact, ideal

FUNCTIONS = attention_functions()
#: largest accepted |exact - float64|, as a share of the largest |value|: fp16 rounds at 2**-11. Coarse on
#: purpose; the derived bound (docs/error_bound.md) is for the tests
TOLERANCE = 2.0**-10


def command_line() -> CommandLine:
    """The flags; --help explains them. The default sizes are those of arXiv:2312.04985v6, section 6.1."""
    cli = CommandLine(
        __file__,
        __doc__,
        "Example:\n"
        f"  python bench/reference.py --S 4096 --kernel {next(iter(FUNCTIONS))} --reps 20 --json out.jsonl\n"
        "Exit status: 0 ok, 1 a result differs, 2 bad usage.",
        without=("row_bits", *NEWER_OPTIONS),
    )
    cli.add_kernel({name: f"exact.{kernel.op}" for name, kernel in FUNCTIONS.items()})
    cli.add_run("the random inputs, N(0, 1)", reps=5, warmup=1)
    cli.run.add_argument(
        "--no-check", dest="check", action="store_false", help="skip the comparison with float64"
    )
    return cli


def float64_error(workload: Workload, inputs: Inputs, got: np.ndarray) -> float:
    """Largest difference from the ideal twin; for SparQ with the selections of the exact one."""
    query, key, value = inputs
    settings, index_bits = workload.settings, workload.spec.index_bits
    if settings is None:
        return float(np.abs(got - ideal.dense_attention(query, key, value)).max())
    steps = exact.sparq_steps(query, key, value, settings, index_bits=index_bits)
    expected = ideal.gathered_attention(query, key, value, steps.positions, steps.counts)
    if settings.mean_value:
        inv_tau = ideal.inverse_temperature(query, steps.components)
        scores = ideal.approx_scores(query, key, steps.components, inv_tau, index_bits=index_bits)
        weights, weight_sum, _ = ideal.softmax_weights(scores)
        alpha = ideal.selected_share(weights, weight_sum, steps.positions)
        mean = ideal.mean_value(ideal.sum_values(value), np.full(len(query), workload.seq_len))
        expected = ideal.combine(expected, alpha, mean)
    return float(np.abs(got - expected).max())


def measure(name: str, workload: Workload, inputs: Inputs, a: argparse.Namespace, progress: Progress) -> Row:
    """One row: checked, timed, then once more for memory, because tracing slows."""
    row = new_row(
        "reference", name, "reference", workload, time_source="measured", seed=a.seed, command=a.command
    )
    row.update(numpy=np.__version__, input_bytes=sum(x.nbytes for x in inputs), max_abs_error_vs_float64=None)

    def run() -> np.ndarray:
        return exact.attention(*inputs, workload.settings, workload.spec)

    if a.check:
        progress.step(f"{name}: check against float64")
        error = float64_error(workload, inputs, run())
        limit = TOLERANCE * float(np.abs(inputs.value).max())
        row.update(checked_against="float64", max_abs_error_vs_float64=error)
        if not error <= limit:
            row["error"] = f"differs from float64 by {error}, more than {limit}"
    seconds = []
    for i in range(a.warmup + a.reps):
        of = f"warm-up {i + 1} of {a.warmup}" if i < a.warmup else f"run {i + 1 - a.warmup} of {a.reps}"
        progress.step(f"{name}: {of}")
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    progress.step(f"{name}: memory")
    tracemalloc.start()
    run()
    row["peak_extra_bytes"] = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    progress.step(None)
    row.update(timing(seconds[a.warmup :]))
    return row


COLUMNS = (
    Column("kernel", -12, lambda r: r["kernel"]),
    Column("median s", 9, lambda r: number(r["seconds_per_query"], ".3f")),
    Column("MAD s", 8, lambda r: number(r["seconds_mad"], ".3f")),
    Column("extra MB", 9, lambda r: number(r["peak_extra_bytes"], ".1f", 1e-6)),
    Column("|error|", 9, lambda r: number(r["max_abs_error_vs_float64"], ".1e")),
)


def main(argv: list[str] | None = None) -> int:
    """Run; 0 if every check held, 1 if one did not, 2 for a wrong command line."""
    cli = command_line()
    a = cli.parse(argv)
    chosen = cli.chosen(a, FUNCTIONS)
    workload = cli.workloads(a, not all(kernel.is_dense for kernel in chosen.values()))[0]
    progress = Progress()
    progress.step("make inputs")
    inputs = random_inputs(workload.spec, workload.n_heads, a.seed)
    rows = []
    for name, kernel in chosen.items():
        rows.append(measure(name, workload.on(kernel), inputs, a, progress))
        print(json.dumps(rows[-1]), flush=True)
        if a.json:
            a.json.append(rows[-1:])
    print(text_table(COLUMNS, rows), file=sys.stderr)
    return int(any(row["error"] for row in rows))


if __name__ == "__main__":
    sys.exit(guarded(main))
