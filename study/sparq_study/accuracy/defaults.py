# SPDX-License-Identifier: Apache-2.0
"""What the default settings cost, by model and length: for docs/accuracy.md and README.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence

from sparq_ipu.commands.tables import markdown_table
from sparq_ipu.transformers.settings.layers import RECOMMENDED, recommended_top_k

from . import report
from .later import KL, gap, in_order, lengths
from .methods import parse_method
from .tasks import TASKS

Items = Dict[int, Dict[str, Any]]
Files = Sequence[List[Dict[str, Any]]]
COPYING = TASKS["repetition"]
#: what is asked for in a text: the longest texts have the first, shorter ones the second
FINDING = (TASKS["retrieval"], TASKS["multikey"])
#: lengths of tasks are those of a model's text if they are at least this share of it
_NEAR = 0.7


class Found(NamedTuple):
    """A task's items with dense attention, and with the default settings."""

    task: Any
    dense: Items
    sparq: Items

    @property
    def metric(self) -> Any:
        return self.task.metrics[0]

    def values(self) -> tuple[float, float]:
        """Of dense attention, and of the default settings."""
        dense, sparq = (report.estimate(items, self.metric).value for items in (self.dense, self.sparq))
        return dense, sparq

    def is_loss(self) -> bool:
        """Whether the default settings are significantly worse."""
        difference = report.difference(self.sparq, self.dense, self.metric)
        return difference is not None and report.clear(difference) and difference.value < 0


class Default(NamedTuple):
    """A model at a length."""

    model: str
    seq_len: int
    top_k: int
    lm: Items
    copying: Found | None
    finding: Found | None


def default_method(seq_len: int) -> str:
    """The method that has the settings of `generate` at that length."""
    rank, bits = RECOMMENDED["rank"], RECOMMENDED["index_bits"]
    return str(parse_method(f"sparq:r={rank},k={recommended_top_k(seq_len)},mean_from=1,index_bits={bits}"))


def rows_of(files: Files, task_files: Files) -> Iterator[Default]:
    """Models and lengths that were measured.

    files: with the task lm. task_files: with the other tasks.
    """
    for lines in in_order(files):
        found = report.select(lines, "lm", "sparse")
        seq_len = next(iter(found["dense"].values()))["seq_len"]
        method = default_method(seq_len)
        if method in found:
            model = lines[0]["model"]
            copying = _task([COPYING], model, seq_len, method, task_files)
            finding = _task(FINDING, model, seq_len, method, task_files)
            yield Default(model, seq_len, recommended_top_k(seq_len), found[method], copying, finding)


def _task(tasks: Sequence[Any], model: str, seq_len: int, method: str, files: Files) -> Found | None:
    for task in tasks:
        for lines in files:
            if lines[0]["model"] != model:
                continue
            found = report.select(lines, task.name, task.questions[-1])
            if method in found and "dense" in found:
                length = next(iter(found["dense"].values()))["seq_len"]
                if _NEAR * seq_len <= length <= seq_len / _NEAR:
                    return Found(task, found["dense"], found[method])
    return None


def table(rows: Sequence[Default]) -> str:
    """KL; then copying and finding, beside dense attention."""
    head = ["model", "positions", "`top_k`", "share of dense attention's bytes"]
    kl, tasks = [], []
    for row in rows:
        interval = report.interval(report.estimate(row.lm, KL), KL.digits)
        cells = [row.model, f"{row.seq_len:,}", str(row.top_k), _share(row.lm)]
        kl.append([*cells, interval, f"{100 * _same(row.lm):.0f} %"])
        for found in (row.copying, row.finding):
            if found is not None:
                cells = [row.model, lengths(found.sparq.values()), str(row.top_k), _share(found.sparq)]
                cells += [found.task.name, str(len(found.sparq))]
                both = (f"{value:.3f}" for value in found.values())
                tasks.append([*cells, *both, gap(found.sparq, found.dense, found.metric)])
    of_tasks = [*head, "task", "contexts", "dense", "SparQ", "difference [95 %]"]
    of_kl = [*head, "KL [95 %]", "same most likely token"]
    return "\n\n".join((markdown_table(of_kl, kl), markdown_table(of_tasks, tasks)))


def _share(items: Items) -> str:
    return f"{100 / report.compression(items):.1f} %"


def _same(items: Items) -> float:
    """Share of tokens of which the most likely one is dense attention's."""
    sums = [item["sums"] for item in items.values()]
    return float(sum(of["same"] for of in sums) / sum(of["n"] for of in sums))


def sentence(rows: Sequence[Default]) -> str:
    """What the model with the longest texts loses, and how often any model predicts another token."""
    told = [(row.seq_len, row.model, row.copying, row.finding) for row in rows if row.copying and row.finding]
    longest, model, copying, finding = max(told, key=lambda of: of[0])
    fine = [n for n, of, *tasks in told if of == model and not any(task.is_loss() for task in tasks)]
    (copied, copies), (found, finds) = copying.values(), finding.values()
    shares = [_same(row.lm) for row in rows]
    finest = f"{max(fine):,} tokens (`top_k={recommended_top_k(max(fine))}`)"
    return (
        f"* **What it costs:** with {Path(model).stem} no loss in copying or retrieval is significant up to "
        f"{finest}. At {longest:,} (`top_k={recommended_top_k(longest)}`) it retrieves {finds:.3f} of the "
        f"digits asked for, densely {found:.3f}, and copies {copies:.3f} of a passage, densely {copied:.3f}. "
        "`generate` chooses these `top_k`; `enable` and `serve` use 256 unless told, and lose more there. "
        f"On plain text the most likely token is that of dense attention in {min(shares):.0%} to "
        f"{max(shares):.0%} of all cases ([accuracy](docs/accuracy.md))."
    )


def beyond(rows: Sequence[Default], goal: float) -> str:
    """How often the default settings have a higher KL than `goal`."""
    n = sum(report.estimate(row.lm, KL).value > goal for row in rows)
    told = f"KL is higher than {goal:.{KL.digits}f} in {n} of the {len(rows)} rows of [accuracy](accuracy.md)"
    return f"With the default settings {told}."
