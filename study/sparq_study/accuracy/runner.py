# SPDX-License-Identifier: Apache-2.0
"""Runs a plan item by item into a file of JSON lines, from which a broken-off run goes on.

Lines: one `header`; one `result` per (task, item, question, method), with the sums that metrics divide; one
`decode_check` per method; one `continued` for each other version of the code that added lines. Lines of a
withdrawn method stay: they are data.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any, Callable

import torch

from .engine import Evaluator
from .methods import Dense, Method, parse_method
from .plan import Contender, Plan
from .prefix import Prefix
from .tasks import TASKS, Item, Probe, Task, Tokenizer, Words
from .text import TEXTS, excerpts

SCHEMA = 1
CALIBRATION_PIECE = 1024  # tokens of a genre, about
Progress = Callable[[str], None]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All complete lines of a result file; a last line cut short by a broken-off run is left out."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


class Results:
    """An open result file. Lines are appended whole, so that several processes may write to one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = read_lines(path)

    @classmethod
    def create(cls, path: Path, header: dict[str, Any], force: bool = False) -> Results:
        """A new file with a header, or an existing one to continue.

        To continue, its header must have the same model, seed, sizes, bits of a prefill and kernels. Methods,
        tasks and numbers of items may differ, as lines do not depend on each other. The header is given the
        new plan, which is what a report shows. A header without a result, of a run that failed at once, is
        replaced.

        Raises: ValueError if the file is not empty and has no header, or one that conflicts.
        """
        header = json.loads(json.dumps(dict(header, kind="header")))
        new = force or not path.exists() or path.stat().st_size == 0
        lines = [] if new else read_results(path)
        key = _conflict(lines[0], header) if lines else None
        if key and all(line.get("kind") in ("header", "continued") for line in lines):
            lines = []
        elif key:
            raise ValueError(
                f"accuracy: {key} of {path} must equal this run's to continue it (or use --force), "
                f"got {lines[0].get(key)!r}"
            )
        if not lines:
            lines = [header]
        else:
            lines[0]["plan"] = header["plan"]
        if header["versions"] not in [line.get("versions") for line in lines]:
            lines.append({"kind": "continued", "versions": header["versions"]})
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(path.suffix + ".part")
        temporary.write_text("".join(cls._text(line) for line in lines), encoding="utf-8")
        os.replace(temporary, path)
        return cls(path)

    @staticmethod
    def _text(line: dict[str, Any]) -> str:
        return json.dumps(line, separators=(",", ":")) + "\n"

    def add(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(self._text(line))

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["kind"] == kind]


def read_results(path: Path) -> list[dict[str, Any]]:
    """The lines of a result file, its header first.

    Raises: ValueError if it has no header: another program wrote it.
    """
    try:
        lines = read_lines(path)
    except UnicodeDecodeError:
        lines = []
    first = lines[0] if lines else None
    if not isinstance(first, dict) or first.get("kind") != "header" or "plan" not in first:
        message = f"accuracy: out must be a file of results (or use --force), got {path} without a header"
        raise ValueError(message)
    return lines


def _conflict(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """The key of a header that forbids lines of `new` beside those of `old`, None if nothing does."""
    for key in ("schema", "model"):
        if old.get(key) != new[key]:
            return key
    old_plan, new_plan = old["plan"], new["plan"]
    sizes = [{t: dict(s, items=0) for t, s in plan["tasks"].items()} for plan in (old_plan, new_plan)]
    same = all(sizes[0][task] == sizes[1][task] for task in set(sizes[0]) & set(sizes[1]))
    how = [
        (plan["seed"], plan.get("prefill_bits", 32), plan.get("kernels", False))
        for plan in (old_plan, new_plan)
    ]
    return None if same and how[0] == how[1] else "plan"


def _rounded(sums: dict[str, float]) -> dict[str, float]:
    return {key: value if value == int(value) else round(value, 6) for key, value in sums.items()}


class Runner:
    """evaluator and tokenizer of one model; results to continue; progress(text) is told what happens."""

    def __init__(
        self,
        evaluator: Evaluator,
        tokenizer: Tokenizer,
        plan: Plan,
        results: Results,
        progress: Progress = lambda text: None,
    ) -> None:
        self.evaluator, self.tokenizer, self.plan = evaluator, tokenizer, plan
        self.results, self.progress = results, progress
        methods = [parse_method(part) for label in plan.methods for part in label.split("@")]
        if any(method.needs_calibration for method in methods) and not evaluator.calibrations:
            progress("calibrating")
            evaluator.calibrate(calibration_tokens(tokenizer, plan))

    def run(self, part: int = 0, n_parts: int = 1) -> None:
        """Everything of the plan that the result file lacks.

        Of `n_parts` processes this is number `part`; each takes every n_parts-th item.
        """
        done = {
            (line["task"], line["item"], line["question"], line["method"])
            for line in self.results.of_kind("result")
        }
        jobs = [(TASKS[name], i) for name in self.plan.tasks for i in range(self.plan.items(name))]
        # Item by item across tasks, so that a run broken off has something of each.
        jobs.sort(key=lambda job: job[1])
        jobs = jobs[part::n_parts]
        start, n_run = time.monotonic(), 0
        for n, (task, i) in enumerate(jobs):
            wanted = [
                (question, label)
                for question in self.plan.questions(task.name)
                for label in self.plan.methods
                if (task.name, i, question, label) not in done
            ]
            if not wanted:
                continue
            began = time.monotonic()
            for line in self._run_item(task, i, wanted):
                self.results.add(line)
            n_run += 1
            spent, took = time.monotonic() - start, time.monotonic() - began
            self.progress(
                f"[{n + 1}/{len(jobs)}] {task.name} {i}: {len(wanted)} rows, {took:.0f} s; "
                f"{spent / 60:.1f} min so far, about {spent / n_run * (len(jobs) - n - 1) / 60:.0f} min to go"
            )

    def _run_item(self, task: Task, index: int, wanted: list[tuple[str, str]]) -> list[dict[str, Any]]:
        item = task.build(self.tokenizer, index, self.plan.seed, **self.plan.sizes(task.name))
        words = Words(self.tokenizer, "")
        evaluator = self.evaluator
        shape = (item.seq_len, evaluator.head_dim)
        methods = {label: Contender(label).resolve(*shape) for _, label in wanted}
        record = any(method.needs_history for method in methods.values())
        prefix = evaluator.prefill(item.context, record=record)
        sums: dict[tuple[str, str], dict[str, float]] = {pair: {} for pair in wanted}
        seconds = dict.fromkeys(wanted, 0.0)
        for probe in item.probes:
            for question in dict.fromkeys(question for question, _ in wanted):
                base, tokens = self._start(prefix, probe, question, record)
                dense = self._log_probs(base, tokens, probe, Dense()) if task.needs_dense else None
                for label in (label for asked, label in wanted if asked == question):
                    began = time.monotonic()
                    if label == "dense" and dense is not None:
                        log_probs = dense
                    else:
                        log_probs = self._log_probs(base, tokens, probe, methods[label])
                    total = sums[question, label]
                    for key, value in task.score(probe, log_probs, dense, words).items():
                        total[key] = total.get(key, 0) + value
                    seconds[question, label] += time.monotonic() - began
        labels: dict[str, Any] = {
            key: item.probes[0].labels[key] for key in ("depth", "length") if key in item.probes[0].labels
        }
        return [
            {
                "kind": "result",
                "task": task.name,
                "item": index,
                "question": question,
                "method": label,
                "resolved": str(methods[label]),
                "seq_len": item.seq_len,
                "compression": round(methods[label].compression(*shape), 4),
                "sums": _rounded(sums[question, label]),
                "seconds": round(seconds[question, label], 2),
                "in_window": bool(
                    item.distance is not None and (methods[label].window() or 0) > item.distance
                ),
                **(labels if len(item.probes) == 1 else {}),
            }
            for question, label in wanted
        ]

    def _start(
        self, prefix: Prefix, probe: Probe, question: str, record: bool = True
    ) -> tuple[Prefix, list[int]]:
        """The dense prefix and the tokens to decode: all of the prompt, or its last token only."""
        if question == "sparse":
            return prefix, probe.prompt + probe.target[:-1]
        base = self.evaluator.prefill(probe.prompt[:-1], prefix, record=record)
        return base, probe.prompt[-1:] + probe.target[:-1]

    def _log_probs(self, base: Prefix, tokens: list[int], probe: Probe, method: Method) -> torch.Tensor:
        logits = self.evaluator.span(base, tokens, method)[-len(probe.target) :]
        return torch.log_softmax(logits, dim=-1)

    def check_decode(self, item: Item, n_tokens: int) -> None:
        """For every method: log-probabilities of the span at once against true step-by-step decoding.

        item: its last `n_tokens` of context are decoded.
        """
        done = {line["method"] for line in self.results.of_kind("decode_check")}
        context, tokens = item.context[:-n_tokens], item.context[-n_tokens:]
        prefix = self.evaluator.prefill(context)
        shape = (len(context), self.evaluator.head_dim)
        for label in self.plan.methods:
            if label in done:
                continue
            method = Contender(label).resolve(*shape)
            together = torch.log_softmax(self.evaluator.span(prefix, tokens, method), dim=-1)
            stepped = torch.log_softmax(self.evaluator.decode(context, tokens, method), dim=-1)
            line = {
                "kind": "decode_check",
                "method": label,
                "resolved": str(method),
                "seq_len": len(context),
                "n": n_tokens,
                "max_abs_log_prob_error": round((together - stepped).abs().max().item(), 6),
                "same_argmax": int((together.argmax(1) == stepped.argmax(1)).sum().item()),
            }
            self.results.add(line)
            self.progress(
                f"decode check {label}: max |delta log-prob| {line['max_abs_log_prob_error']:.1e}, "
                f"argmax {line['same_argmax']}/{n_tokens}"
            )


def calibration_tokens(tokenizer: Tokenizer, plan: Plan) -> list[int]:
    """A piece of each genre of the texts that the plan's tasks do not have."""
    of_tasks = {str(sizes.get("texts", "study")) for sizes in plan.tasks.values()}
    others = [name for name in TEXTS if name not in of_tasks]
    if not others:
        raise ValueError(
            f"accuracy: texts must leave one of {', '.join(TEXTS)} to calibrate on, got {', '.join(of_tasks)}"
        )
    tokens = []
    for _, text in excerpts(others[0])[: len(TEXTS[others[0]][1])]:
        tokens += tokenizer(text[: 4 * CALIBRATION_PIECE], add_special_tokens=False)["input_ids"]
    return tokens


def header(plan: Plan, model: str, versions: dict[str, str]) -> dict[str, Any]:
    """First line of a result file."""
    return {"schema": SCHEMA, "model": model, "plan": dataclasses.asdict(plan), "versions": versions}
