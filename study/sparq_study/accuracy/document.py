# SPDX-License-Identifier: Apache-2.0
"""The generated blocks of docs/study.md, made from the lines of the published result files.

All figures of results in that document are in these blocks: tables, and the differences that its claims rest
on. `python study/accuracy.py --write` puts them there; a test fails when block and data differ.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable

from sparq_ipu.commands.tables import markdown_table

from . import report
from .methods import Method, parse_method
from .plan import FOUR_BITS, LEVELS, ROWS_OF_8_BITS, TIERED
from .plan import RECOMMENDED_METHOD as RECOMMENDED
from .tasks import TASKS, Metric

RIVALS = ("h2o", "lm_infinite", "alisa")
TWELFTH, SIXTH, THIRD = LEVELS  # about so much of dense attention's transfer
KL, BPC, REPETITION, MULTIKEY = "lm KL", "lm BPC", "repetition accuracy", "multikey digits"
COMMON = "common ranking"


def _published(level: str) -> str:
    """SparQ at a level, as the paper has it."""
    return str(parse_method(level))


def _late(level: str) -> str:
    """SparQ at a level, without the mean value in layer 0."""
    return str(parse_method(f"{level},mean_from=1"))


def _bits(method: str, index_bits: int) -> str:
    """A SparQ method with another key index."""
    return str(dataclasses.replace(parse_method(method), index_bits=index_bits))  # type: ignore[call-arg]


def _components(method: str, rank: int) -> str:
    """A SparQ method with another rank."""
    return str(dataclasses.replace(parse_method(method), rank=rank))  # type: ignore[call-arg]


# r=32 and k=128 with a key index of 16 bits: what other methods of 16 bits are compared with.
R32 = _bits(FOUR_BITS, 16)
R16, INT8 = _late(SIXTH), f"alisa:kv_bits=8@{SIXTH}"

#: block -> (first method, second method, measures): a row for each measure, first minus second
DIFFERENCES: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {
    "copying": [
        *((method, "dense", (REPETITION,)) for method in (_published(SIXTH), "sparq")),
        *((f"{name}@{SIXTH}", _published(SIXTH), (REPETITION,)) for name in RIVALS),
    ],
    "first_layer": [
        (R32, "sparq", (KL, REPETITION)),
        (_late(SIXTH), _published(SIXTH), (KL, REPETITION)),
        (_late(TWELFTH), _published(TWELFTH), (KL, REPETITION, MULTIKEY)),
        (_late(THIRD), _published(THIRD), (KL, REPETITION)),
        ("oracle:mean_from=1", "oracle", (KL, REPETITION)),
    ],
    "other_layers": [(R16, "sparq:r=16,mean_from=-1", (KL, BPC, REPETITION))],
    "nearer": [
        *((f"{name}@{level}", _late(level), (KL,)) for level in (THIRD, SIXTH, TWELFTH) for name in RIVALS),
        (INT8, _late(SIXTH), (KL,)),
        ("flexgen", R32, (KL,)),
        ("flexgen", RECOMMENDED, (KL,)),
    ],
    "temperature": [(f"{R16},tau={tau}", R16, (KL, REPETITION)) for tau in ("sqrt_d", "sqrt_r")],
    "projection": [("low_rank:r=16,mean_from=1", R16, (KL, REPETITION))],
    "bits": [
        *((_bits(R32, bits), R32, (KL, BPC, REPETITION, MULTIKEY)) for bits in (8, 4, 2)),
        *((_bits(_late(THIRD), bits), _late(THIRD), (KL, BPC, REPETITION, MULTIKEY)) for bits in (8, 4, 2)),
        (_bits(R32, 4), R16, (KL, REPETITION)),
        (_bits(_late(THIRD), 4), R32, (KL, REPETITION)),
        ("dense:kv_bits=8", "dense", (KL,)),
        (f"{R32},kv_bits=8", R32, (KL,)),
        (INT8, f"alisa@{SIXTH}", (KL,)),
    ],
    "more": [
        (_late(THIRD), R32, (KL, REPETITION, COMMON)),
        (R32, R16, (KL, REPETITION, "multivalue digits")),
    ],
    "plain_text": [
        *((_published(TWELFTH), f"{name}@{TWELFTH}", (KL,)) for name in RIVALS),
        *((_published(level), f"{name}@{level}", (BPC,)) for level in (SIXTH, THIRD) for name in RIVALS),
        *((_late(level), f"{name}@{level}", (BPC,)) for level in (SIXTH, THIRD) for name in RIVALS),
        (_late(SIXTH), INT8, (BPC,)),
    ],
    "published_temperature": [
        (f"{_published(SIXTH)},tau={tau}", _published(SIXTH), (KL, REPETITION))
        for tau in ("sqrt_r", "none", "sqrt_d")
    ],
    "lost": [
        *((method, "dense", (MULTIKEY,)) for method in (_published(SIXTH), R16, FOUR_BITS, RECOMMENDED)),
        *((method, "dense", (MULTIKEY, REPETITION)) for method in (_published(TWELFTH), _late(TWELFTH))),
    ],
    "close": [
        (RECOMMENDED, "dense", (BPC, REPETITION, "needle digits")),
        (RECOMMENDED, FOUR_BITS, (KL, BPC, REPETITION, MULTIKEY, "multivalue digits", COMMON)),
    ],
    "aggregation": [
        *((method, "dense", (COMMON,)) for method in (FOUR_BITS, RECOMMENDED, "flexgen")),
        *((f"{name}@{SIXTH}", "dense", (COMMON,)) for name in RIVALS),
        *((f"lm_infinite@{level}", _late(level), (COMMON,)) for level in (SIXTH, TWELFTH)),
    ],
}

#: the same, of the held-out texts
TASKS_THERE = (REPETITION, MULTIKEY, "multivalue digits", "tracking digits")
HELD_OUT_DIFFERENCES: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {
    "held_out_dense": [(method, "dense", (BPC, *TASKS_THERE)) for method in (FOUR_BITS, RECOMMENDED, TIERED)],
    "held_out_settings": [
        (RECOMMENDED, FOUR_BITS, (KL, BPC, *TASKS_THERE)),
        (TIERED, FOUR_BITS, (KL, BPC, *TASKS_THERE)),
        (TIERED, RECOMMENDED, (KL, BPC, *TASKS_THERE)),
        (_components(TIERED, 64), TIERED, (KL, BPC, *TASKS_THERE)),
    ],
    "held_out_rows": [
        (f"{TIERED},rows={rows}", TIERED, (KL, *TASKS_THERE)) for rows in (*ROWS_OF_8_BITS[1:], "int8")
    ],
}


def _metric(measure: str) -> tuple[str, str, Metric]:
    """(task, question, metric) of a measure such as "lm KL"; the whole prompt is decoded by the method."""
    task, _, name = measure.partition(" ")
    (metric,) = (metric for metric in TASKS[task].metrics if metric.name == name)
    return task, TASKS[task].questions[-1], metric


def differences(
    lines: list[dict[str, Any]], wanted: Iterable[tuple[str, str, tuple[str, ...]]], partial: bool = False
) -> str:
    """A table of two methods' values and their paired difference; bold where the difference is clear.

    wanted: (first method, second method, measures), as in DIFFERENCES. partial: leave out what was not run,
    and show how many contexts the rest has; a method's value is then that of the contexts that both have.
    Raises: ValueError if the lines lack one of the methods, unless `partial`.
    """
    rows = []
    for first, second, measures in wanted:
        for measure in measures:
            task, question, metric = _metric(measure)
            by_method = report.select(lines, task, question)
            missing = [method for method in (first, second) if method not in by_method]
            if missing and partial:
                continue
            if missing:
                raise ValueError(f"accuracy: results must have {missing[0]} on {task}, got none")
            both = set(by_method[first]) & set(by_method[second])
            items = [
                {i: line for i, line in by_method[method].items() if i in both or not partial}
                for method in (first, second)
            ]
            gap = report.difference(items[0], items[1], metric)
            assert gap is not None  # both methods have been run on some item
            values = [f"{report.estimate(found, metric).value:.{metric.digits}f}" for found in items]
            text = report.interval(gap, metric.digits, "+")
            bold = f"**{text}**" if report.clear(gap) else text
            contexts = [str(gap.n)] if partial else []
            rows.append([f"{measure}: `{first}` - `{second}`", *contexts, *values, bold])
    contexts = ["contexts"] if partial else []
    return markdown_table(["first - second", *contexts, "first", "second", "difference [95 %]"], rows)


def run_table(lines: list[dict[str, Any]]) -> str:
    """What was run: the number of methods, and of contexts of each task."""
    plan = lines[0]["plan"]
    header = ["methods", *(f"contexts of {task}" for task in plan["tasks"])]
    row = [str(len(plan["methods"])), *(str(sizes.get("items", 1)) for sizes in plan["tasks"].values())]
    return markdown_table(header, [row])


def done_table(lines: list[dict[str, Any]]) -> str:
    """How many contexts of each task every method has, of those of the plan."""
    plan = lines[0]["plan"]
    rows = []
    for method in plan["methods"]:
        counts = (
            len(report.select(lines, task, TASKS[task].questions[-1]).get(method, {}))
            for task in plan["tasks"]
        )
        rows.append([f"`{method}`", *counts])
    return markdown_table(["contexts", *plan["tasks"]], rows)


def levels(lines: list[dict[str, Any]]) -> str:
    """The main metric of each task at equal transfer, the whole prompt decoded by the method."""
    tasks = lines[0]["plan"]["tasks"]
    tables = (report.levels_table(lines, t, TASKS[t].questions[-1:], RIVALS) for t in tasks)
    return "\n\n".join(tables)


def settings_table(lines: list[dict[str, Any]]) -> str:
    """All methods that `levels` does not have, and SparQ's settings: one line each."""
    plan = lines[0]["plan"]
    wide = ("lm", "repetition")  # tasks whose interval is shown
    matched = [f"{name}@" for name in RIVALS]
    methods = [m for m in plan["methods"] if not m.startswith(tuple(matched))]
    columns: list[tuple[str, str, Metric, int, bool]] = []
    for task in plan["tasks"]:
        main = TASKS[task].metrics[0]
        name = f"{task} {main.name}" if task == "lm" else task
        columns.append((name, task, main, 3 if task in wide else 2, task in wide))
        if task == "lm":
            columns.append((BPC, task, _metric(BPC)[2], 3, False))
    data = {task: report.select(lines, task, TASKS[task].questions[-1]) for task in plan["tasks"]}
    rows = []
    for method in methods:
        row = [f"`{method}`", f"{report.compression(data['lm'][method]):.1f}"]
        for _, task, metric, digits, with_interval in columns:
            if method not in data[task]:  # not run yet
                row.append("")
                continue
            value = report.estimate(data[task][method], metric)
            row.append(report.interval(value, digits) if with_interval else f"{value.value:.{digits}f}")
        rows.append(row)
    return markdown_table(["method", "compression", *(name for name, *_ in columns)], rows)


def _rounded(method: Method) -> tuple[bool, bool]:
    """Whether a method rounds (the cache, the key index)."""
    return method.kv_bits < 16, getattr(method, "index_bits", 16) < 16


def decode_summary(lines: list[dict[str, Any]]) -> str:
    """Largest deviation of the evaluation at once from true decoding, with and without a rounded cache."""
    checks = [line for line in lines if line["kind"] == "decode_check"]
    rows = []
    for name, rounded in (
        ("16 bits", (False, False)),
        ("a key index of few bits (`index_bits`)", (False, True)),
        ("rounded (`kv_bits`)", (True, False)),
    ):
        found = [line for line in checks if _rounded(parse_method(line["resolved"])) == rounded]
        worst = max(line["max_abs_log_prob_error"] for line in found)
        same, n = sum(line["same_argmax"] for line in found), sum(line["n"] for line in found)
        rows.append([name, str(len(found)), f"{worst:.1e}", f"{same}/{n}"])
    return markdown_table(
        ["cache", "methods", "max abs difference of log-probabilities", "same most likely token"], rows
    )


def blocks(lines: list[dict[str, Any]], held_out: list[dict[str, Any]]) -> dict[str, str]:
    """Name -> text of every generated block.

    lines: of the file of results. held_out: of that of the held-out texts.
    """
    return {
        "run": run_table(lines),
        "levels": levels(lines),
        "settings": settings_table(lines),
        **{name: differences(lines, wanted) for name, wanted in DIFFERENCES.items()},
        "held_out_run": done_table(held_out),
        "held_out": settings_table(held_out),
        **{name: differences(held_out, wanted, True) for name, wanted in HELD_OUT_DIFFERENCES.items()},
        "decode": decode_summary(lines),
    }
