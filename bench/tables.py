#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables of docs/benchmarks.md from committed rows: servers, a long prompt, models of several sizes,
predictions, kernels, prompts, linear layers.

    python bench/tables.py --write

Without --write they are printed. The rows of whole models have a command of their own: `bench/decode.py
--read FILE --write`.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from lib.common import ROOT, Parser, Row, guarded, number
from lib.decode_tables import fastest_runs, how, of_the_peers, prompts_of, read_rows
from lib.origin import caption

from sparq_ipu.commands.tables import markdown_table, replace_block

DOCUMENT = ROOT / "docs/benchmarks.md"
RESULTS = ROOT / "bench/results"
#: method of bench/decode.py -> label
PREDICTED = {"dense": "dense", "recommended": "SparQ"}
#: server of bench/serve.py -> label
SERVERS = {"sparq": "sparq-ipu serve", "llama": "llama.cpp", "transformers": "transformers serve"}
#: method of bench/decode.py -> label, of other programs
OTHERS = {"llama.cpp": "llama.cpp", "openvino": "OpenVINO"}
KERNELS = ("dense", "sparq", "sparq-int8", "sparq-int4", "sparq-int2")


def kernels(rows: list[Row]) -> str:
    """Milliseconds of one call of the CPU kernels; in brackets the ratio to a plain sum of the same bytes."""
    runs = {
        (row["n_heads"], row["n_kv_heads"], row["seq_len"], row["top_k"], row["command"])
        for row in rows
        if row["top_k"]
    }
    lines = []
    for n_heads, n_kv_heads, seq_len, top_k, command in sorted(runs):
        of_kernel = {
            row["kernel"]: f"{row['seconds_per_query'] * 1e3:.3f} ({row['ratio_to_stream']:.1f})"
            for row in rows
            if (row["n_heads"], row["n_kv_heads"]) == (n_heads, n_kv_heads)
            and (row["seq_len"], row["command"]) == (seq_len, command)
        }
        cells = [f"{n_heads}/{n_kv_heads}", f"{seq_len:,}", str(top_k)]
        lines.append([*cells, *(of_kernel.get(kernel, "-") for kernel in KERNELS)])
    head = ["heads/KV heads", "positions", "`top_k`", "dense", *(f"{bits} bits" for bits in (16, 8, 4, 2))]
    return f"{markdown_table(head, lines)}\n\n{caption(rows)}"


def row_bits(rows: list[Row]) -> str:
    """Milliseconds of one call with rows of 16 and of 8 bits, in one run, and their ratio."""
    seconds = {
        (row["n_heads"], row["n_kv_heads"], row["head_dim"], row["seq_len"], row["kernel"]): row[
            "seconds_per_query"
        ]
        for row in rows
    }
    lines = []
    for n_heads, n_kv_heads, *at in sorted({key[:4] for key in seconds}):
        cells = [f"{n_heads}/{n_kv_heads}", *(f"{n:,}" for n in at)]
        for kernel in ("dense", "sparq-int2"):
            half, coded = (seconds[(n_heads, n_kv_heads, *at, kernel + end)] for end in ("", "-rows8"))
            cells.append(f"{half * 1e3:.3f} / {coded * 1e3:.3f} ({coded / half:.2f})")
        lines.append(cells)
    head = ["heads/KV heads", "head_dim", "positions", "dense", "SparQ, 2 bits"]
    return f"{markdown_table(head, lines)}\n\n{caption(rows)}"


def rates(rows: list[Row], by: str, title: str) -> str:
    """Median GFLOP/s (minimum-maximum), a column for each `by`."""
    columns = sorted({row[by] for row in rows})
    lines = [
        [
            name,
            *(
                "{gflop_per_s:.0f} ({least:.0f}-{most:.0f})".format(**row)
                for column in columns
                for row in rows
                if (row["method"], row[by]) == (name, column)
            ),
        ]
        for name in dict.fromkeys(row["method"] for row in rows)
    ]
    head = ["GFLOP/s", *(title.format(column) for column in columns)]
    repeats = f"Medians of {rows[0]['repeats']} calls (minimum-maximum)"
    return f"{markdown_table(head, lines)}\n\n{caption(rows, repeats)}"


def prompts(rows: list[Row]) -> str:
    """Attention of a prompt."""
    return rates(rows, "head_dim", "head_dim {}")


def products(rows: list[Row]) -> str:
    """Linear layers."""
    return rates(rows, "n_rows", "{} rows")


def short(rows: list[Row]) -> str:
    """SparQ's rate over that of dense attention at short lengths."""
    # One file has a run for each top_k: dense attention, then SparQ, at each length.
    ratios = {
        (sparq["top_k"], sparq["seq_len"]): sparq["tokens_per_second"] / dense["tokens_per_second"]
        for dense, sparq in zip(rows, rows[1:])
        if (dense["method"], sparq["method"]) == ("dense", "sparq") and dense["seq_len"] == sparq["seq_len"]
    }
    lengths = sorted({length for _, length in ratios})
    lines = [
        [str(top_k), *(f"{ratios[top_k, length]:.2f}" for length in lengths)]
        for top_k in sorted({top_k for top_k, _ in ratios})
    ]
    head = ["`top_k`", *(f"{length:,} positions" for length in lengths)]
    return f"{markdown_table(head, lines)}\n\n{caption(rows)}"


def predictions(rows: list[Row]) -> str:
    """Predicted and measured times of a model, and the gain of SparQ that follows: medians of runs."""
    cases: dict[tuple[int, str, str], list[Row]] = {}
    for row in rows:
        cases.setdefault((row["seq_len"], row["dtype"], row["method"]), []).append(row)

    def median_of(case: tuple[int, str, str], name: str) -> tuple[float, float]:
        runs = [row for row in cases[case] if row[name] is not None]
        predicted, measured = (statistics.median(row[of + name] for row in runs) for of in ("predicted_", ""))
        return predicted, measured

    lines, errors = [], []
    for case in sorted(cases):
        seq_len, dtype, method = case
        cells = [f"{seq_len:,}", dtype, PREDICTED[method]]
        for name, form in (("seconds_per_step", ".1f"), ("first_token_seconds", ".0f")):
            predicted, measured = median_of(case, name)
            cells += [number(predicted, form, 1e3), number(measured, form, 1e3)]
            cells.append(f"{predicted / measured - 1:+.0%}")
        if method == "dense":
            cells.append("")
        else:
            pairs = (median_of((seq_len, dtype, which), "seconds_per_step") for which in ("dense", method))
            predicted, measured = (dense / sparse for dense, sparse in zip(*pairs))
            errors.append(abs(predicted / measured - 1))
            cells.append(f"{predicted:.2f} / {measured:.2f}")
        lines.append(cells)
    head = ["positions", "weights", "attention"]
    head += ["ms per token, predicted", "ms per token, measured", "difference"]
    head += ["ms to first token, predicted", "ms to first token, measured", "difference"]
    head.append("gain of SparQ, predicted / measured")
    single = max(
        abs(row[f"predicted_{name}"] / row[name] - 1)
        for row in rows
        for name in ("seconds_per_step", "first_token_seconds")
        if row[name] is not None
    )
    said = (
        f"Medians of {min(map(len, cases.values()))} runs or more; one alone was off by up to {single:.0%}. "
        f"The predicted gain is off by at most {max(errors):.0%}"
    )
    return f"{markdown_table(head, lines)}\n\n{caption(rows, said, *prompts_of(rows))}"


def servers(rows: list[Row]) -> str:
    """Servers under load."""
    head = ["server", "prompt tokens", "requests at once", "tokens/s, prompts included"]
    head += ["tokens/s after first tokens", "seconds to first token, median (99 %)"]
    lines = [
        [
            SERVERS[row["server"]],
            f"{row['prompt_tokens']:,}",
            str(row["at_once"]),
            f"{row['overall_tokens_per_second']:.0f}",
            f"{row['writing_tokens_per_second']:.0f}",
            "{:.2f} ({:.2f})".format(*row["first_seconds"]),
        ]
        for row in sorted(
            rows, key=lambda row: (row["prompt_tokens"], row["at_once"], row["server"] != "sparq")
        )
    ]
    load = f"Other programs used at most {max(row['others'] for row in rows):.1%} of the processors"
    return f"{markdown_table(head, lines)}\n\n{caption(rows, load)}"


def sizes(rows: list[Row]) -> str:
    """Models of several sizes: tokens per second, and memory. Of several rows the fastest counts."""
    runs = fastest_runs(rows)
    weights: dict[str, int] = {}
    for (model, *_), run in runs.items():
        weights[model] = max(weights.get(model, 0), run["dense"]["weight_bytes"])
    programs = [name for name in OTHERS if any(name in run for run in runs.values())]
    lines = []
    for (model, batch, seq_len), run in sorted(runs.items(), key=lambda of: (weights[of[0][0]], of[0])):
        rates = {method: row["tokens_per_second"] for method, row in run.items()}
        cells = [model, number(weights[model], ".1f", 1e-9), f"{seq_len:,}", str(batch)]
        cells.append(number(run["recommended"]["cache_bytes"], ".1f", 1e-9))
        cells += [number(rates.get(name), ".1f") for name in (*programs, "dense", "recommended")]
        lines.append([*cells, f"{rates['recommended'] / rates['dense']:.2f}"])
    head = ["shape", "weights, GB", "positions", "batch", "KV cache, GB"]
    head += [*(OTHERS[name] for name in programs), "ours, dense", "ours, SparQ", "SparQ / dense"]
    return f"{markdown_table(head, lines)}\n\n{how(rows)}"


#: block -> the file of its rows, and its table
ROWS = {
    "servers": ("serve.jsonl", servers),
    "peers_avx2": ("peers_avx2.jsonl", of_the_peers),
    "long_prompt": ("long_prompt.jsonl", of_the_peers),
    "sizes": ("sizes.jsonl", sizes),
    "predictions": ("predictions.jsonl", predictions),
    "short": ("short_decode.jsonl", short),
    "kernels": ("cpu_sparq.jsonl", kernels),
    "row_bits": ("cpu_row_bits.jsonl", row_bits),
    "prompts": ("prompt.jsonl", prompts),
    "products": ("products.jsonl", products),
}


def main(argv: list[str] | None = None) -> int:
    """The command."""
    cli = Parser(
        prog="bench/tables.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cli.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    a = cli.parse_args(argv)
    for name, (file, table) in ROWS.items():
        text = table(read_rows(RESULTS / file))
        print(f"{text}\n")
        if a.write:
            replace_block(DOCUMENT, name, text)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
