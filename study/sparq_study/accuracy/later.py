# SPDX-License-Identifier: Apache-2.0
"""The generated block of docs/sparse_methods.md: methods that came after SparQ, at equal bytes.

Each model and length has a file of lines, `study/results/later_*.jsonl`, by `study/accuracy.py --later`.
Methods that were measured and later withdrawn keep their rows: `study/results/withdrawn.json` names them.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any, Container, Dict, Iterable, Sequence

from sparq_ipu.commands.tables import markdown_table

from . import report
from .methods import METHODS, Method, SparQ, parse_method
from .plan import LATER, LATER_LEVELS, LATER_OTHERS
from .tasks import TASKS, Metric

Items = Dict[int, Dict[str, Any]]
KL = TASKS["lm"].metrics[0]
OURS = next(iter(LATER))
WITHDRAWN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "results/withdrawn.json").read_text(encoding="utf-8")
)
#: names of rows -> methods, one for each level
ROWS: dict[str, Sequence[str]] = {name: {**LATER, **WITHDRAWN["levels"]}[name] for name in WITHDRAWN["rows"]}
CHOSEN_ON = "SmolLM2-135M-Instruct Q4_1"  # the model that the middle level was chosen on
GOAL_METHODS = (OURS, "double_sparsity", *WITHDRAWN["goal"], "SparQ, index of 2 bits", "best positions known")
TEXTS = {"study": "chosen on", "held_out": "held out"}
TASKS_TOLD = ("repetition", "multikey", "multivalue", "tracking", "retrieval")
#: bytes of the keys and values of a position in float16: layers, KV heads, head_dim, 2 x 2 bytes
POSITION_BYTES = {
    CHOSEN_ON: 30 * 3 * 64 * 4,
    "qwen2.5-coder-0.5b.gguf": 24 * 2 * 64 * 4,
    "qwen2.5-coder-1.5b.gguf": 28 * 2 * 128 * 4,
}


def current_method(text: str) -> Method | None:
    """A method from the text of a result; None: it was withdrawn."""
    return parse_method(text) if text.partition(":")[0] in METHODS else None


def title(lines: list[dict[str, Any]]) -> str:
    """Model, length and contexts of a file."""
    found = report.select(lines, "lm", "sparse")["dense"]
    length = next(iter(found.values()))["seq_len"]
    return f"{lines[0]['model']}, {length:,} positions, {len(found)} contexts"


def run(found: Container[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Levels that a file has, and its methods at them: great lengths and models have some of both."""
    levels = [level in found for level in LATER_LEVELS]
    at_levels = {name: list(itertools.compress(methods, levels)) for name, methods in ROWS.items()}
    return at_levels[OURS], {
        name: methods for name, methods in at_levels.items() if all(m in found for m in methods)
    }


def bytes_for(kl: float, points: Sequence[tuple[float, float]]) -> tuple[str, float]:
    """("at most ", "more than " or "", share of dense attention's bytes) at which a method would reach a KL.

    points: (share, KL) by rising share. Between two of them both are taken to follow a power law.
    """
    if kl >= points[0][1]:
        return "at most ", points[0][0]
    for (less, high), (more, low) in zip(points, points[1:]):
        if low <= kl < high:
            part = math.log(high / kl) / math.log(high / low)
            return "", less * (more / less) ** part
    return "more than ", points[-1][0]


def share_for(kl: float, points: Sequence[tuple[float, float]]) -> str:
    """`bytes_for` as text."""
    bound, share = bytes_for(kl, points)
    return f"{bound}{100 * share:.1f} %"


def named(name: str, items: Items, every: Items) -> str:
    """A method's name, with its contexts where it has fewer than the others."""
    return name if len(items) == len(every) else f"{name} ({len(items)} contexts)"


def points_of(found: dict[str, Items], methods: Sequence[str]) -> list[tuple[float, float]]:
    """(share of dense attention's bytes, KL) of each."""
    return [(1 / report.compression(found[m]), report.estimate(found[m], KL).value) for m in methods]


def kl_table(lines: list[dict[str, Any]]) -> str:
    """KL of each method at each level, and the bytes for the KL of SparQ at the middle one."""
    found = report.select(lines, "lm", "sparse")
    levels, methods_run = run(found)
    shares = [1 / report.compression(found[level]) for level in levels]
    goal = report.estimate(found[LATER_LEVELS[1]], KL).value
    rows = []
    for name, methods in methods_run.items():
        values = [report.interval(report.estimate(found[method], KL), KL.digits) for method in methods]
        told = named(name, found[methods[0]], found["dense"])
        rows.append([told, *values, share_for(goal, points_of(found, methods))])
    header = [
        "KL [95 %] at a share of dense attention's bytes of",
        *(f"{100 * share:.1f} %" for share in shares),
    ]
    return markdown_table([*header, "share of bytes for the KL of 4 bits, k=128"], rows)


def gap(items: Items, base: Items, metric: Metric = KL) -> str:
    """A metric of one method less another's, in pairs of contexts; bold if it is clear."""
    difference = report.difference(items, base, metric)
    assert difference is not None
    text = report.interval(difference, metric.digits, "+")
    return f"**{text}**" if report.clear(difference) else text


def gap_table(lines: list[dict[str, Any]]) -> str:
    """Each method less SparQ at the same level, in pairs of contexts; bold where it is clear."""
    found = report.select(lines, "lm", "sparse")
    levels, methods_run = run(found)
    rows = [
        [
            named(name, found[methods[0]], found["dense"]),
            *(gap(found[method], found[level]) for method, level in zip(methods, levels)),
        ]
        for name, methods in methods_run.items()
        if name != OURS
    ]
    return markdown_table([f"KL minus that of {OURS}", *(f"`{level}`" for level in levels)], rows)


def others_table(lines: list[dict[str, Any]]) -> str:
    """What has no level; empty if the file has none of it."""
    found = report.select(lines, "lm", "sparse")
    rows = []
    for method in filter(found.__contains__, (*LATER_OTHERS, *WITHDRAWN["others"])):
        share = 100 / report.compression(found[method])
        kl = report.interval(report.estimate(found[method], KL), KL.digits)
        rows.append([f"`{method}`", f"{share:.1f} %", kl, gap(found[method], found[LATER_LEVELS[1]])])
    header = ["method", "share of dense attention's bytes", "KL [95 %]"]
    return markdown_table([*header, f"KL minus that of `{LATER_LEVELS[1]}`"], rows) if rows else ""


def in_order(files: Sequence[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Files by model and length."""
    return sorted(
        files, key=lambda lines: (lines[0]["model"], lines[0]["plan"]["tasks"]["lm"].get("length", 0))
    )


def goal_table(files: Sequence[list[dict[str, Any]]]) -> str:
    """The bytes a token for which each method of GOAL_METHODS has the KL of the middle level on CHOSEN_ON."""
    goal, rows = goal_of(files), []
    for lines in in_order(files):
        found = report.select(lines, "lm", "sparse")
        dense = next(iter(found["dense"].values()))["seq_len"] * POSITION_BYTES[lines[0]["model"]]
        _, methods_run = run(found)
        cells = []
        for name in GOAL_METHODS:
            if name not in methods_run:
                cells.append("")
                continue
            bound, share = bytes_for(goal, points_of(found, methods_run[name]))
            told = f"{bound}{share * dense / 1e6:.1f} MB, {100 * share:.1f} %"
            cells.append(named(told, found[methods_run[name][0]], found["dense"]))
        rows.append([title(lines), f"{dense / 1e6:.1f} MB", *cells])
    return markdown_table([f"bytes read at a KL of {goal:.{KL.digits}f}", "dense", *GOAL_METHODS], rows)


def goal_of(files: Sequence[list[dict[str, Any]]]) -> float:
    """The KL of the middle level, 4 bits and k=128, on the model that it was chosen on."""
    (goal,) = (
        report.estimate(report.select(lines, "lm", "sparse")[LATER_LEVELS[1]], KL).value
        for lines in files
        if lines[0]["model"] == CHOSEN_ON
    )
    return goal


def settings_table(files: Sequence[list[dict[str, Any]]], more: Sequence[list[dict[str, Any]]]) -> str:
    """Of each model, length and set of texts, and of each kind of index: the settings of fewest bytes that
    reach the goal, or those that come nearest to it.

    files: those of `tables`; the goal is from them. more: of other settings. What has too few contexts for an
    interval is left out.
    """
    goal, rows = goal_of(files), []
    groups: dict[tuple[str, str, str], dict[SparQ, Items]] = {}
    for lines in in_order([*files, *more]):
        for items in report.select(lines, "lm", "sparse").values():
            first = next(iter(items.values()))
            method = current_method(first["resolved"])
            if type(method) is not SparQ or not report.has_interval(report.estimate(items, KL)):
                continue
            # A key index of some components moves no fewer bytes, and `components_table` has it.
            if method.index_components:
                continue
            texts = TEXTS[lines[0]["plan"]["tasks"]["lm"].get("texts", "study")]
            key = (lines[0]["model"], f"{first['seq_len']:,}", texts)
            groups.setdefault(key, {})[method] = items
    for key, found in groups.items():
        for bits in (4, 2):
            kl = {
                method: report.estimate(items, KL)
                for method, items in found.items()
                if method.index_bits == bits
            }
            if not kl:
                continue
            reach = [method for method in kl if kl[method].value <= goal]
            if reach:
                best = max(reach, key=lambda method: report.compression(found[method]))
            else:
                best = min(kl, key=lambda method: kl[method].value)
            share = f"{100 / report.compression(found[best]):.1f} %"
            value = report.interval(kl[best], KL.digits)
            settings = f"`rank={best.rank}, top_k={best.top_k}, index_bits={bits}`"
            rows.append([*key, settings, str(kl[best].n), share, value, "yes" if reach else "no"])
    header = [
        "model",
        "positions",
        "texts",
        "settings",
        "contexts",
        "share of dense attention's bytes",
        "KL [95 %]",
    ]
    return markdown_table([*header, f"KL at most {goal:.{KL.digits}f}"], rows)


def components_table(files: Sequence[list[dict[str, Any]]]) -> str:
    """A key index of some of the components beside one of all, and beside 4 bits with k=128 (all components).

    Every figure of a row but the last is of the contexts that both indices have.
    """
    rows = []
    for lines in in_order(files):
        found = report.select(lines, "lm", "sparse")
        for items in found.values():
            method = current_method(next(iter(items.values()))["resolved"])
            if not isinstance(method, SparQ) or not method.index_components:
                continue
            base = str(dataclasses.replace(method, index_components=0))
            if base not in found:
                continue
            both = set(items) & set(found[base])
            kl = (report.estimate({i: of[i] for i in both}, KL).value for of in (found[base], items))
            rows.append(
                [
                    lines[0]["model"],
                    f"{next(iter(items.values()))['seq_len']:,}",
                    str(len(both)),
                    f"`{base}`",
                    str(method.index_components),
                    *(f"{value:.{KL.digits}f}" for value in kl),
                    gap(items, found[base]),
                    gap(items, found[LATER_LEVELS[1]]),
                ]
            )
    header = ["model", "positions", "contexts", "method", "components"]
    header += ["KL, all components", "KL, these components", "difference"]
    return markdown_table([*header, f"difference from `{LATER_LEVELS[1]}`"], rows)


def lengths(items: Iterable[dict[str, Any]]) -> str:
    """The positions of items: one length, or the least and the greatest."""
    found = sorted({line["seq_len"] for line in items})
    return " to ".join(f"{length:,}" for length in dict.fromkeys((found[0], found[-1])))


def tasks_table(files: Sequence[list[dict[str, Any]]]) -> str:
    """Repetition and retrieval: of dense attention, and of each other method less that.

    The questions are decoded too. A file has some of the tasks; the rest of its cells is empty.
    """
    runs = []
    for lines in files:
        by_task = {task: report.select(lines, task, TASKS[task].questions[-1]) for task in TASKS_TOLD}
        found = {task: of for task, of in by_task.items() if of}
        dense = [line for of in found.values() for line in of["dense"].values()]
        runs.append((lines[0]["model"], min(line["seq_len"] for line in dense), lengths(dense), found))
    rows = []
    for model, _, positions, found in sorted(runs, key=lambda run: run[:3]):
        of_one = next(iter(found.values()))
        for method, items in of_one.items():
            cells = []
            for task in TASKS_TOLD:
                metric, of = TASKS[task].metrics[0], found.get(task, {})
                if method not in of:
                    cells.append("")
                elif method == "dense":
                    cells.append(f"{report.estimate(of[method], metric).value:.{metric.digits}f}")
                else:
                    cells.append(gap(of[method], of["dense"], metric))
            name = "dense attention" if method == "dense" else f"`{method}` minus dense"
            share = f"{100 / report.compression(items):.1f} %"
            rows.append([model, positions, str(len(items)), name, share, *cells])
    return markdown_table(["model", "positions", "contexts", "method", "share of bytes", *TASKS_TOLD], rows)


def tables(files: Sequence[list[dict[str, Any]]]) -> str:
    """The tables of every file, by model and length."""
    return "\n\n".join(
        part
        for lines in in_order(files)
        for part in (f"**{title(lines)}**", kl_table(lines), gap_table(lines), others_table(lines))
        if part
    )
