# SPDX-License-Identifier: Apache-2.0
"""Markdown tables from the lines of a result file."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Sequence

import numpy as np

from sparq_ipu.commands.tables import markdown_table

from .measure import LEVEL, Estimate, paired_difference, ratio
from .methods import parse_method
from .plan import COMPARISONS, LEVELS
from .tasks import TASKS, Metric

# With 2 items a t interval is so long that it says nothing: it is shown from 3 items on. With fewer than 5
# nothing is called worse: n differences of one sign happen by chance in 2^(1-n) of all cases.
FEWEST, ENOUGH = 3, 5
INTERVALS = (
    f"Intervals aim at 95 %: jackknife over items, Student's t at {100 * LEVEL:.1f} % to allow for skew. "
    "Those of a metric are cut at the ends of its range; differences are paired by item and not cut. None is "
    f"shown of fewer than {FEWEST} items, or where all items are the same."
)
QUESTION_TEXT = {"dense": "prompt processed densely", "sparse": "prompt decoded by the method"}


def select(lines: list[dict[str, Any]], task: str, question: str) -> dict[str, dict[int, dict[str, Any]]]:
    """method -> item -> result line, methods in order of the plan, items below its number."""
    n_items = lines[0]["plan"]["tasks"].get(task, {}).get("items", 1) if lines else 0
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for line in lines:
        if line["kind"] != "result" or (line["task"], line["question"]) != (task, question):
            continue
        if line["item"] < n_items:
            found.setdefault(line["method"], {})[line["item"]] = line
    order = lines[0]["plan"]["methods"] if lines else []
    return {method: found[method] for method in order if method in found}


def _sums(items: dict[int, dict[str, Any]], wanted: list[int], key: str) -> np.ndarray:
    return np.array([items[i]["sums"][key] for i in wanted], dtype=float)


def estimate(items: dict[int, dict[str, Any]], metric: Metric) -> Estimate:
    """A metric of one method over all its items; an interval is cut at the ends of the metric's range."""
    wanted = sorted(items)
    found = ratio(_sums(items, wanted, metric.over), _sums(items, wanted, metric.under))
    if not has_interval(found):
        return found
    return dataclasses.replace(found, low=max(found.low, 0.0), high=min(found.high, metric.most))


def difference(
    items: dict[int, dict[str, Any]], base: dict[int, dict[str, Any]], metric: Metric
) -> Estimate | None:
    """A metric of one method minus another's, on the items that both have; None without any."""
    wanted = sorted(set(items) & set(base))
    if not wanted:
        return None
    over, under = _sums(items, wanted, metric.over), _sums(items, wanted, metric.under)
    base_over, base_under = _sums(base, wanted, metric.over), _sums(base, wanted, metric.under)
    return paired_difference(over, under, base_over, base_under)


def compression(items: dict[int, dict[str, Any]]) -> float:
    """Mean over items, of elements moved (so that equal transfers give equal numbers)."""
    return 1 / float(np.mean([1 / line["compression"] for line in items.values()]))


def has_interval(value: Estimate) -> bool:
    """Items enough, and not all the same."""
    return value.n >= FEWEST and math.isfinite(value.high)


def interval(value: Estimate, digits: int, sign: str = "") -> str:
    """A value, with its interval if it has one. sign: "+" to show it."""
    if not has_interval(value):
        return f"{value.value:{sign}.{digits}f}"
    return f"{value.value:{sign}.{digits}f} [{value.low:{sign}.{digits}f}, {value.high:{sign}.{digits}f}]"


def _compared(metrics: tuple[Metric, ...]) -> Metric:
    """The first metric that is not already a distance from dense."""
    return next(metric for metric in metrics if not metric.from_dense)


def clear(gap: Estimate) -> bool:
    """Items enough, and an interval without 0."""
    return gap.n >= ENOUGH and (gap.low > 0 or gap.high < 0)


def task_table(lines: list[dict[str, Any]], task: str, question: str) -> str:
    """Every method on one task: compression, the metrics, and the paired difference from dense of the first
    metric that is not such a difference itself."""
    by_method = select(lines, task, question)
    metrics = TASKS[task].metrics
    main = metrics[0]
    compared = _compared(metrics)
    header = ["method", "compression", *(f"{m.name} [95 %]" if m is main else m.name for m in metrics)]
    header.append(f"{compared.name} - dense [95 %]")
    rows = []
    for method, items in by_method.items():
        row = [f"`{method}`", f"{compression(items):.2f}"]
        for metric in metrics:
            value = estimate(items, metric)
            digits = metric.digits
            row.append(interval(value, digits) if metric is main else f"{value.value:.{digits}f}")
        gap = difference(items, by_method["dense"], compared) if "dense" in by_method else None
        if method == "dense" or gap is None:
            row.append("")
        else:
            worse = clear(gap) and (gap.value > 0) == (compared.better == "low")
            row.append(interval(gap, compared.digits, "+") + (" worse" if worse else ""))
        if any(line["in_window"] for line in items.values()):
            row[0] += " (window reaches the answer)"
        rows.append(row)
    return markdown_table(header, rows)


def overview(lines: list[dict[str, Any]]) -> str:
    """Main metric of every task in one table; compression at the language modelling length (or the first
    task's)."""
    pairs = [(t, q) for t in lines[0]["plan"]["tasks"] for q in TASKS[t].questions]
    data = {pair: select(lines, *pair) for pair in pairs}
    first = next((data[pair] for pair in pairs if data[pair]), {})
    header = ["method", "compression"]
    for task, question in pairs:
        name = f"{task} {TASKS[task].metrics[0].name}"
        header.append(name if len(TASKS[task].questions) == 1 else f"{name} ({question})")
    rows = []
    for method, items in first.items():
        row = [f"`{method}`", f"{compression(items):.1f}"]
        for pair in pairs:
            metric = TASKS[pair[0]].metrics[0]
            found = data[pair].get(method)
            row.append(f"{estimate(found, metric).value:.{metric.digits}f}" if found else "")
        rows.append(row)
    return markdown_table(header, rows)


def levels_table(
    lines: list[dict[str, Any]],
    task: str,
    questions: Sequence[str] | None = None,
    rivals: Sequence[str] | None = None,
) -> str:
    """The main metric at equal transfer, one column per level of LEVELS, as the paper's tables 2 and 3.

    questions: of those of the task; None for all. rivals: methods beside SparQ; None for all of the plan.
    Empty if the plan has none of the levels.
    """
    entry = TASKS[task]
    metric = entry.metrics[0]
    questions = entry.questions if questions is None else questions
    levels = list(reversed(LEVELS))
    if rivals is None:
        rivals = list(dict.fromkeys(m.partition("@")[0] for m in lines[0]["plan"]["methods"] if "@" in m))
    labels = {
        "SparQ as published": [str(parse_method(level)) for level in levels],
        "SparQ, no mean value in layer 0": [str(parse_method(f"{level},mean_from=1")) for level in levels],
        **{f"`{name}`": [f"{name}@{level}" for level in reversed(LEVELS)] for name in rivals},
    }
    rows, compressions = [], [""] * len(levels)
    for question in questions:
        by_method = select(lines, task, question)

        def cell(label: str, found: dict[str, dict[int, dict[str, Any]]] = by_method) -> str:
            return interval(estimate(found[label], metric), metric.digits) if label in found else ""

        prompt = [question] if len(questions) > 1 else []
        rows.append(["dense", *prompt, cell("dense"), *("" for _ in levels)])
        for name, wanted in labels.items():
            if any(label in by_method for label in wanted):
                rows.append([name, *prompt, "", *map(cell, wanted)])
        for i, label in enumerate(labels["SparQ as published"]):
            if label in by_method:
                compressions[i] = f"{compression(by_method[label]):.1f}x"
    if not any(compressions):
        return ""
    prompt = ["prompt"] if len(questions) > 1 else []
    return markdown_table([f"{task}: {metric.name}", *prompt, "1x", *compressions], rows)


def pairs_table(lines: list[dict[str, Any]]) -> str:
    """Paired differences between methods: COMPARISONS, and every METHOD@REFERENCE with its reference.

    Columns: the main metric of each task, and what is compared with dense; whole prompt by the method.
    """
    methods = lines[0]["plan"]["methods"]
    pairs = [pair for pair in COMPARISONS if set(pair) <= set(methods)]
    with_reference = [(m, str(parse_method(m.partition("@")[2]))) for m in methods if "@" in m]
    pairs += [(method, reference) for method, reference in with_reference if reference in methods]
    columns = []
    for task in lines[0]["plan"]["tasks"]:
        entry = TASKS[task]
        wanted = dict.fromkeys([entry.metrics[0], _compared(entry.metrics)])
        by_method = select(lines, task, entry.questions[-1])
        columns += [(task, metric, by_method) for metric in wanted]
    rows = []
    for method, other in pairs:
        row = [f"`{method}` - `{other}`"]
        for _, metric, by_method in columns:
            both = method in by_method and other in by_method
            gap = difference(by_method[method], by_method[other], metric) if both else None
            text = interval(gap, metric.digits, "+") if gap else ""
            row.append(f"**{text}**" if gap and clear(gap) else text)
        rows.append(row)
    names = [f"{task} {metric.name} ({metric.better} is good)" for task, metric, _ in columns]
    return markdown_table(["pair", *names], rows) if rows else ""


def decode_table(lines: list[dict[str, Any]]) -> str:
    """Emulation of all queries at once against true decoding."""
    rows = [
        [f"`{line['method']}`", f"{line['max_abs_log_prob_error']:.1e}", f"{line['same_argmax']}/{line['n']}"]
        for line in lines
        if line["kind"] == "decode_check"
    ]
    return (
        markdown_table(["method", "max abs difference of log-probabilities", "same most likely token"], rows)
        if rows
        else ""
    )


def page(lines: list[dict[str, Any]]) -> str:
    """The whole report of a result file."""
    head = lines[0]
    versions = [line["versions"] for line in lines if line["kind"] in ("header", "continued")]
    parts = [
        f"Model {head['model']}, seed {head['plan']['seed']}; code and libraries: "
        + "; then ".join(", ".join(f"{key} {value}" for key, value in v.items()) for v in versions)
        + ". "
        + INTERVALS,
        "## Overview",
        overview(lines),
    ]
    by_level = list(filter(None, (levels_table(lines, task) for task in head["plan"]["tasks"])))
    if by_level:
        parts += [
            "## At equal transfer",
            "Main metric of each task by compression; methods of a column move the same number of elements. "
            "prompt: processed densely, or decoded by the method.",
            *by_level,
        ]
    for task in head["plan"]["tasks"]:
        entry = TASKS[task]
        sizes = ", ".join(f"{key} {value}" for key, value in head["plan"]["tasks"][task].items())
        parts.append(f"## {task}: {entry.summary}")
        metrics = "; ".join(f"{m.name}: {m.text} ({m.better} is good)" for m in entry.metrics)
        n_done = min(map(len, select(lines, task, entry.questions[-1]).values()), default=0)
        partial = f" (so far {n_done})" if n_done < head["plan"]["tasks"][task].get("items", 1) else ""
        parts.append(f"{sizes}{partial}. {metrics}.")
        for question in entry.questions:
            if len(entry.questions) > 1:
                parts.append(f"**{QUESTION_TEXT[question]}**")
            parts.append(task_table(lines, task, question))
    pairs = pairs_table(lines)
    if pairs:
        parts += [
            "## Pairs of methods",
            "First minus second, paired by item, the whole prompt decoded by the method. Bold: five items or "
            "more and an interval without 0. Of so many intervals some leave 0 out by chance.",
            pairs,
        ]
    checked = decode_table(lines)
    if checked:
        parts += ["## Check against true decoding", checked]
    return "\n\n".join(parts) + "\n"
