# SPDX-License-Identifier: Apache-2.0
"""What study/alisa.py computes: a line for each run of the simulator, with the accuracy study's quality."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, Callable, Dict, Sequence

import numpy as np

from sparq_reference import DoesNotFit
from sparq_study.alisa import (
    MACHINES,
    MODELS,
    RECOMPUTE,
    Attention,
    Costs,
    Schedule,
    Timeline,
    Workload,
    all_fast,
    best_schedule,
    flexgen,
    offload_everything,
    read_published,
    simulate,
    static_split,
)

SCHEMA = 1
Line = Dict[str, Any]

#: (machine, model) of the comparison with FlexGen: models whose weights fit, the largest two sizes of each
POINTS = (
    *(("V100-16", model) for model in ("OPT-6.7B", "LLaMA-7B")),
    *(("V100-32", model) for model in ("OPT-6.7B", "LLaMA-7B", "OPT-13B", "LLaMA-13B")),
    *(("H100-80", model) for model in ("OPT-13B", "LLaMA-13B", "OPT-30B", "LLaMA-33B")),
)
BATCHES = (4, 8, 16, 32, 64)
#: of figure 12
SPARSITIES = (0.2, 0.4, 0.6, 0.8)
#: the batch that figure 1 is read with: the largest of the paper's that fits its GPU whole
FIGURE_1_BATCH = 32

#: tasks of the accuracy study whose quality, and whose share of tokens kept, are shown
SHOWN = ("lm", "repetition", "needle", "multikey")
#: SparQ inside the schedule: a workload of the paper, and two with longer prompts
LONG = (
    ("H100-80", "OPT-30B", 64, 128),
    ("H100-80", "LLaMA-13B", 16, 3584),
    ("H100-80", "LLaMA-33B", 4, 3584),
)
#: (method of the accuracy study, how it is called, index_bits, rank / head_dim); ALISA has no index
METHODS = (
    ("alisa@sparq:k=256", "ALISA", 0, 0.0),
    ("alisa@sparq:r=16,k=128", "ALISA", 0, 0.0),
    ("alisa@sparq:r=8,k=64", "ALISA", 0, 0.0),
    ("sparq:k=256,mean_from=1,index_bits=4", "SparQ", 4, 0.5),
    ("sparq:mean_from=1,index_bits=4", "SparQ", 4, 0.5),
)


def factor_of_figure_1() -> float:
    """How much slower than stated computing must be for FlexGen to take 5 times as long with everything in
    slow memory, as figure 1 has it. The one number that is taken from the paper's results; its comparison
    with ALISA is not used."""
    work = Workload(MACHINES["V100-32"], MODELS["OPT-6.7B"], FIGURE_1_BATCH)
    wanted = read_published()["slowdown_all_offloaded"].low
    slow, fast = offload_everything(work), all_fast(work)
    return round(float(slow.link.sum()) / ((wanted - 1) * fast.seconds), 2)


def variants() -> dict[str, Costs]:
    """The costs that everything is shown with."""
    return {"stated": Costs(), "figure 1": Costs(software_factor=factor_of_figure_1())}


def _line(kind: str, costs: str | None, **values: Any) -> Line:
    """A line of results; `costs`: of `variants`."""
    return {"schema": SCHEMA, "kind": kind, **({"costs": costs} if costs else {}), **values}


def _numbers(schedule: Schedule) -> Line:
    return {name: round(getattr(schedule, name), 4) for name in ("alpha", "beta", "p1", "p2")}


def _of(work: Workload) -> Line:
    return {"machine": work.machine.name, "model": work.model.name, "batch": work.batch}


def _seconds(run: Callable[[], Timeline]) -> float | None:
    try:
        return round(run().seconds, 4)
    except DoesNotFit:
        return None


def speedup(work: Workload, name: str, costs: Costs) -> Line:
    """All policies of one workload, seconds each; None where something does not fit."""
    schedule, run = best_schedule(work, None, costs)
    dense = flexgen(work, costs)
    return _line(
        "speedup",
        name,
        **_of(work),
        flexgen=round(dense.seconds, 4),
        all_fast=_seconds(lambda: all_fast(work, costs)),
        offload_everything=_seconds(lambda: offload_everything(work, costs)),
        alisa=round(run.seconds, 4),
        speedup=round(dense.seconds / run.seconds, 4),
        tokens=work.batch * work.n_output,
        **_numbers(schedule),
    )


def _figure_12() -> Workload:
    return Workload(MACHINES["H100-80"], MODELS["OPT-30B"], 64)


def phases(name: str, costs: Costs, sparsity: float) -> Line:
    """Figure 12a: seconds of each phase, of ALISA and of FlexGen in the same steps; bytes at the end."""
    work = _figure_12()
    schedule, run = best_schedule(work, Attention(sparsity), costs)
    ends = (0, schedule.p1, schedule.p2, work.n_output)
    line = _line("phase", name, sparsity=sparsity, **_numbers(schedule))
    for policy, of in (("alisa", run), ("flexgen", flexgen(work, costs))):
        line[policy] = [round(float(of.steps[a:b].sum()), 4) for a, b in zip(ends, ends[1:])]
        line[f"{policy}_bytes"] = [round(float(b[-1])) for b in (of.fast_bytes, of.slow_bytes)]
    return line


def _gain(attention: Attention, costs: Costs, fill: bool = True) -> float:
    """Figure 12b: total time without recomputation over that with it."""
    without, best = (
        best_schedule(_figure_12(), attention, costs, recompute=recompute, fill=fill)[1].seconds
        for recompute in (False, True)
    )
    return round(without / best, 4)


def recomputation(name: str, costs: Costs, sparsity: float, bits: int) -> Line:
    """The gain of recomputation from each source."""
    gains = {
        source: _gain(Attention(sparsity, bits), dataclasses.replace(costs, recompute=source))
        for source in RECOMPUTE
    }
    return _line("recompute", name, sparsity=sparsity, bits=bits, gain=gains)


def ablation(name: str, costs: Costs, sparsity: float) -> Line:
    """Figure 12c: seconds of FlexGen, then with sparse attention, then scheduling, then compression too."""
    work = _figure_12()
    runs = [flexgen(work, costs), flexgen(work, costs, sparsity)]
    runs += [best_schedule(work, Attention(sparsity, bits), costs)[1] for bits in (16, 8)]
    return _line("ablation", name, sparsity=sparsity, seconds=[round(run.seconds, 4) for run in runs])


def offloading(name: str, costs: Costs) -> list[Line]:
    """Figure 1: FlexGen with half and all of the keys and values in slow memory, against none."""
    lines = []
    for batch in (4, 8, 16, 32):
        work = Workload(MACHINES["V100-32"], MODELS["OPT-6.7B"], batch)
        fast = all_fast(work, costs).seconds
        ratios = [round(static_split(work, share, costs).seconds / fast, 4) for share in (0.5, 1.0)]
        lines.append(_line("offloading", name, batch=batch, slowdown=ratios))
    return lines


#: what is changed, one at a time, to see what each free parameter does
CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("as it is", {}),
    ("flops_efficiency 0.25", {"flops_efficiency": 0.25}),
    ("bandwidth_efficiency 0.4", {"bandwidth_efficiency": 0.4}),
    ("reserve 0", {"reserve": 0.0}),
    ("reserve 0.2", {"reserve": 0.2}),
    ("layer_overhead 1 ms", {"layer_overhead": 1e-3}),
    ("recompute_overhead 0", {"recompute_overhead": 0.0}),
    ("recompute_overhead 1 ms", {"recompute_overhead": 1e-3}),
)
#: the paper's formula, where alpha is the same at every step
CONSTANT_SHARE = "alpha the same at every step"


def _runs(costs: Costs, fill: bool = True) -> list[tuple[Workload, float, float]]:
    """Of each point of figure 9: the workload, and seconds of FlexGen and of ALISA."""
    works = [Workload(MACHINES[m], MODELS[n], b) for m, n in POINTS for b in BATCHES]
    return [
        (w, flexgen(w, costs).seconds, best_schedule(w, None, costs, fill=fill)[1].seconds) for w in works
    ]


def sensitivity() -> list[Line]:
    """The range of speed-ups with one free parameter changed."""
    lines = []
    for what, change in (*CHANGES, (CONSTANT_SHARE, {})):
        costs, fill = Costs(**change), what != CONSTANT_SHARE
        found = [dense / sparse for _, dense, sparse in _runs(costs, fill)]
        ends = [round(float(x), 4) for x in (min(found), np.median(found), max(found))]
        p2 = [best_schedule(_figure_12(), Attention(s), costs, fill=fill)[0].p2 for s in (0.2, 0.8)]
        gain = _gain(Attention(0.8, 16), costs, fill)
        lines.append(_line("sensitivity", None, change=what, speedup=ends, gain=gain, p2=p2))
    return lines


def overhead_for(largest: float, costs: Costs, name: str) -> Line:
    """Seconds more a step of ALISA must take for its largest speed-up to be that of the paper."""
    needs = (((dense / largest - sparse) / w.n_output, w, sparse) for w, dense, sparse in _runs(costs))
    need, work, sparse = max(needs, key=lambda found: found[0])
    seconds = {"seconds_per_step": round(need, 4), "of": round(sparse / work.n_output, 4)}
    return _line("overhead", name, largest=largest, **_of(work), **seconds)


# ---- SparQ inside the schedule


def _measure(rows: Sequence[Line]) -> Line:
    """The study's numbers of one method, as docs/study.md has them: sums over all texts of a task."""

    def ratio(task: str, over: str, under: str) -> float:
        own = [r for r in rows if r["task"] == task]
        asked = [r for r in own if r["question"] == "sparse"] or own  # the question too with the method
        sums = [r["sums"] for r in asked]
        return round(sum(s[over] for s in sums) / sum(s[under] for s in sums), 4)

    def top_k(row: Line) -> int:
        found = re.search(r"\bk=(\d+)", row["resolved"])
        most = row["seq_len"] if row["resolved"] == "dense" else 128
        return int(found.group(1)) if found else most

    return {
        "kl": ratio("lm", "kl", "n"),
        "bpc": ratio("lm", "bits", "chars"),
        **{task: ratio(task, "hits", "n") for task in SHOWN[1:]},
        "kept": round(float(np.mean([top_k(r) / r["seq_len"] for r in rows if r["task"] in SHOWN])), 4),
    }


def quality(path: Path) -> dict[str, Line]:
    """What the accuracy study has published of METHODS and of dense attention."""
    rows = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["kind"] == "result"]
    names = ["dense", *(method for method, *_ in METHODS)]
    return {name: _measure([row for row in rows if row["method"] == name]) for name in names}


def inside_the_schedule(measured: dict[str, Line], costs: Costs, name: str) -> list[Line]:
    """Tokens a second of each method with the share of tokens that it kept in the study."""
    lines = []
    for method, label, index_bits, rank_share in METHODS:
        kept = measured[method]["kept"]
        local = 0.5 if label == "ALISA" else 0.25
        attention = Attention(1 - kept, 8, local, index_bits, rank_share, running_sums=True)
        speeds = []
        for machine, model, batch, n_input in LONG:
            work = Workload(MACHINES[machine], MODELS[model], batch, n_input)
            try:
                speeds.append(round(best_schedule(work, attention, costs)[1].throughput, 2))
            except DoesNotFit:
                speeds.append(None)
        found = measured[method]
        lines.append(_line("sparq", name, method=method, label=label, **found, throughput=speeds))
    return lines


def everything(accuracy: Path, progress: Callable[[str], None] = lambda text: None) -> list[Line]:
    """All lines."""
    lines: list[Line] = []
    for name, costs in variants().items():
        for machine, model in POINTS:
            progress(f"{name}: {machine}, {model}")
            lines += [speedup(Workload(MACHINES[machine], MODELS[model], b), name, costs) for b in BATCHES]
        lines += [phases(name, costs, s) for s in SPARSITIES]
        lines += [recomputation(name, costs, s, bits) for bits in (16, 8) for s in SPARSITIES]
        lines += [ablation(name, costs, s) for s in SPARSITIES]
        lines += offloading(name, costs)
        lines += inside_the_schedule(quality(accuracy), costs, name)
        lines.append(overhead_for(read_published()["speedup_flexgen"].high, costs, name))
    progress("sensitivity")
    return [*lines, *sensitivity()]


def timeline_of(sparsity: float, costs: Costs) -> tuple[Timeline, Timeline]:
    """ALISA and FlexGen of figure 12, for its plot."""
    work = _figure_12()
    schedule, _ = best_schedule(work, Attention(sparsity), costs)
    return simulate(work, Attention(sparsity), schedule, costs), flexgen(work, costs)
