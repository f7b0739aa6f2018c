#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What rows of 8 bits cost: the error of the attention output on recorded traces (see docs/study.md).

    python study/rows.py --input play.npz --json runs/row_bits.jsonl

The relative error of the output, |y - y'| / |y'|, as a mean over layers, steps and heads for each trace and
top_k: against the same selection with rows of float16, and against dense attention. The rules of
the rows are those of study/sparq_study/accuracy/methods/rows.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Sequence

import numpy as np
from shared import Parser, Progress, check_output, guarded

from sparq_study import traces

#: steps that are evaluated together; bounds the memory that takes
STEPS = 32


def measure(trace: traces.Trace, top_k: int, every: int = 1) -> dict[str, Any]:
    """The line of one trace and top_k; `every`: of the steps, one in so many is looked at."""
    import torch

    from sparq_study.accuracy.methods import Dense, Span, parse_method
    from sparq_study.accuracy.methods.rows import ROWS

    rank = min(32, trace.head_dim)
    methods = {
        rows: parse_method(f"sparq:r={rank},k={top_k},mean_from=-1,index_bits=4,rows={rows}") for rows in ROWS
    }
    of_fp16: dict[str, list[float]] = {rows: [] for rows in ROWS}
    of_dense: dict[str, list[float]] = {rows: [] for rows in ROWS}

    def tensor(array: np.ndarray) -> torch.Tensor:
        return torch.tensor(array.astype(np.float32))

    def error(got: torch.Tensor, wanted: torch.Tensor) -> list[float]:
        return list(((got - wanted).norm(dim=-1) / wanted.norm(dim=-1)).flatten().tolist())

    for number, layer in trace.layers.items():
        for first in range(0, trace.n_steps, STEPS * every):
            n = min(STEPS, trace.n_steps - first)
            end = trace.start + first + n
            query = tensor(layer.query[first : first + n]).transpose(0, 1)
            query = query.reshape(trace.n_kv_heads, -1, n, trace.head_dim)
            key, value = tensor(layer.key[:, :end]), tensor(layer.value[:, :end])
            span = Span(query, key, value, number, trace.head_dim**-0.5)
            dense = Dense().attend(span)
            outputs = {rows: method.attend(span) for rows, method in methods.items()}
            for rows, output in outputs.items():
                of_fp16[rows] += error(output, outputs["fp16"])
                of_dense[rows] += error(output, dense)
    return {
        "text": trace.text,
        "kind": trace.kind,
        "model": trace.model,
        "start": trace.start,
        "layers": trace.layer_numbers,
        "rank": rank,
        "top_k": top_k,
        "index_bits": 4,
        "n_outputs": len(of_dense["fp16"]),
        "against_fp16_rows": {
            rows: round(float(np.mean(of_fp16[rows])), 6) for rows in ROWS if rows != "fp16"
        },
        "against_dense": {rows: round(float(np.mean(of_dense[rows])), 6) for rows in ROWS},
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--input", type=Path, nargs="+", metavar="TRACE", required=True, help="traces of study/capture.py")
    add("--k", type=int, nargs="+", default=[128, 256], metavar="N", help="top_k, one or more [128 256]")
    add("--every", type=int, default=1, metavar="N", help="look at one of N groups of 32 steps [1]")
    add("--json", type=Path, metavar="FILE", help="append JSON lines: one for each trace and top_k")
    a = parser.parse_args(argv)
    if min(a.every, *a.k) < 1:
        parser.error(f"--every and --k must be at least 1, got {min(a.every, *a.k)}")
    check_output(parser, "--json", a.json)
    progress = Progress()
    lines = []
    try:
        for path in a.input:
            trace = traces.load(path)
            for top_k in a.k:
                progress.step(f"{trace.text}, {trace.kind}: k={top_k}")
                lines.append(measure(trace, top_k, a.every))
    except (OSError, ValueError) as error:
        progress.step(None)
        parser.error(str(error))
    progress.step(None)
    if a.json is not None:
        with a.json.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    for line in lines:
        print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
