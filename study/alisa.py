#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ALISA's scheduler (arXiv:2403.17312), simulated, beside what the paper publishes: see docs/alisa.md.

    python study/alisa.py                                     tables: half a minute
    python study/alisa.py --json runs/alisa.jsonl             and a line for each run
    python study/alisa.py --model OPT-30B --machine H100-80 --batch 64 --sparsity 0.8     one workload
    python study/alisa.py --write                             the published lines into docs/alisa.md
    python study/alisa.py --plots docs                        pictures like its figures 9 and 12 (matplotlib)
    python study/alisa.py --device emulator --trace prose.npz --layers 15 --hot-rows 4352 1024
                                                              its phases, executed on an emulated IPU: minutes

The model is study/sparq_study/alisa. Nothing here was measured on a GPU, or on an IPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Sequence

import alisa_device
import alisa_lines
import numpy as np
from alisa_lines import LONG, SCHEMA, Line
from shared import ROOT, Parser, Progress, check_output, guarded, only, refuse

from sparq_ipu.commands.tables import markdown_table, replace_block
from sparq_study.alisa import (
    MACHINES,
    MODELS,
    RECOMPUTE,
    Attention,
    Costs,
    Workload,
    best_schedule,
    flexgen,
    read_published,
)

RESULTS = ROOT / "study/results/alisa.jsonl"
ACCURACY = ROOT / "study/results/accuracy_smollm2_135m.jsonl"
DOCUMENT = ROOT / "docs/alisa.md"
TRACE = ROOT / "tests/data/smollm2_steps.npz"
#: positions of a larger layer that steps are planned for
PLANNED_FOR = 4608


def arguments() -> argparse.ArgumentParser:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--json", type=Path, metavar="FILE", help="write JSON lines, one for each run")
    add("--plots", type=Path, metavar="FOLDER", help="draw the published lines there (needs matplotlib)")
    text = f"only put study/results/{RESULTS.name} into docs/{DOCUMENT.name}"
    add("--write", action="store_true", help=text)
    one = parser.add_argument_group("one workload").add_argument
    one("--model", choices=MODELS, help="run this alone")
    one("--machine", choices=MACHINES, default="H100-80", help="[H100-80]")
    one("--batch", type=int, default=64, metavar="N", help="sequences [64]")
    one("--input", type=int, default=128, metavar="N", help="tokens of a prompt [128]")
    one("--output", type=int, default=512, metavar="N", help="tokens generated [512]")
    one("--sparsity", type=float, default=0.8, metavar="X", help="share of tokens not attended to [0.8]")
    one("--bits", type=int, default=8, choices=(8, 16), help="of a stored number [8]")
    one("--recompute", choices=RECOMPUTE, default=RECOMPUTE[0], help=f"[{RECOMPUTE[0]}]")
    device = parser.add_argument_group("phases on a device").add_argument
    device("--device", choices=("emulator",), help="execute phases I and II there")
    device(
        "--trace",
        type=Path,
        default=TRACE,
        metavar="FILE",
        help="a trace of study/capture.py [the tests' own]",
    )
    device("--layers", type=int, nargs="+", metavar="N", help="layers of the trace [all]")
    device(
        "--hot-rows", type=int, nargs="+", default=[800], metavar="N", help="buffers of hot rows [800 each]"
    )
    return parser


def _where(lines: Sequence[Line], **wanted: Any) -> list[Line]:
    return [line for line in lines if all(line.get(name) == value for name, value in wanted.items())]


def _costs(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(line["costs"] for line in lines if "costs" in line))


def _speed(line: Line, name: str) -> str:
    return "OOM" if line[name] is None else f"{line['tokens'] / line[name]:.0f}"


def _range(values: Sequence[float], digits: int = 2) -> str:
    low, high = (f"{x:.{digits}f}" for x in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


# ---- the paper's statements, point by point


def _growth(lines: Sequence[Line]) -> str:
    """In how many series the speed-up never falls as the batch grows."""
    series: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        series.setdefault((line["machine"], line["model"]), []).append(line["speedup"])
    good = sum(all(b >= a for a, b in zip(of, of[1:])) for of in series.values())
    return f"{good} of {len(series)} series"


def _ablation_factors(line: Line) -> list[float]:
    s = line["seconds"]
    return [a / b for a, b in zip(s, s[1:])]


def _gains(lines: Sequence[Line], costs: str, bits: int) -> str:
    return _range(
        [line["gain"]["input-slow"] for line in _where(lines, kind="recompute", costs=costs, bits=bits)]
    )


def published(lines: Sequence[Line]) -> str:
    """Each statement of the paper, and what the model says with both costs."""
    said = read_published()
    rows: list[list[str]] = []

    def row(name: str, what: str, paper: str, model: Any) -> None:
        rows.append(
            [what, paper, *(model(costs) for costs in _costs(lines)), said[name].source.split(", ")[-1]]
        )

    def of(kind: str, costs: str) -> list[Line]:
        return _where(lines, kind=kind, costs=costs)

    def interval(name: str) -> str:
        return f"{said[name].low:g} to {said[name].high:g}"

    def slowdown(index: int) -> Any:
        return lambda c: f"{of('offloading', c)[-1]['slowdown'][index]:.2f}"

    row("slowdown_half_offloaded", "half of KV in slow memory: time x", "3", slowdown(0))
    row("slowdown_all_offloaded", "all of KV in slow memory: time x", "5", slowdown(1))
    row(
        "speedup_flexgen",
        "speed-up over FlexGen, all points",
        interval("speedup_flexgen"),
        lambda c: _range([line["speedup"] for line in of("speedup", c)]),
    )
    row(
        "speedup_flexgen",
        "of the points, in that range",
        "all",
        lambda c: "{} of {}".format(
            sum(
                said["speedup_flexgen"].low <= line["speedup"] <= said["speedup_flexgen"].high
                for line in of("speedup", c)
            ),
            len(of("speedup", c)),
        ),
    )
    row(
        "speedup_grows_with_batch",
        "speed-up grows with the batch",
        "yes",
        lambda c: _growth(of("speedup", c)),
    )
    row(
        "faster_in_all_phases",
        "faster than FlexGen in every phase",
        "yes",
        lambda c: (
            "yes"
            if all(a < b for p in of("phase", c) for a, b in zip(p["alisa"], p["flexgen"]) if b)
            else "no"
        ),
    )
    row(
        "phase_three_later",
        "phase III begins at step, by sparsity",
        "later",
        lambda c: ", ".join(str(p["p2"]) for p in of("phase", c)),
    )
    row(
        "smaller_in_phase_three",
        "bytes of KV at the end, ALISA / FlexGen",
        "below 1",
        lambda c: _range([sum(p["alisa_bytes"]) / sum(p["flexgen_bytes"]) for p in of("phase", c)]),
    )
    for bits in (16, 8):
        row(
            "recompute_gain",
            f"gain of recomputation, {bits} bits",
            interval("recompute_gain"),
            lambda c, bits=bits: _gains(lines, c, bits),
        )
    row(
        "techniques_equal",
        "factors of sparsity, schedule, INT8 at 80 %",
        "equal",
        lambda c: ", ".join(f"{x:.1f}" for x in _ablation_factors(of("ablation", c)[-1])),
    )
    header = ["statement", "paper", *(f"model, {c}" for c in _costs(lines)), "where"]
    return markdown_table(header, rows)


# ---- tables


def speedups(lines: Sequence[Line]) -> str:
    """Figure 9: tokens a second of all policies, and the speed-up with the other costs too."""
    stated, slower = _costs(lines)
    both = zip(_where(lines, kind="speedup", costs=stated), _where(lines, kind="speedup", costs=slower))
    rows = [
        [
            f"{line['model']}, {line['machine']}",
            line["batch"],
            _speed(line, "offload_everything"),
            _speed(line, "all_fast"),
            _speed(line, "flexgen"),
            _speed(line, "alisa"),
            f"{line['speedup']:.2f}",
            f"{other['speedup']:.2f}",
            f"{line['alpha']:.2f}",
            f"{line['beta']:.2f}",
            line["p1"],
            line["p2"],
        ]
        for line, other in both
    ]
    header = ["model, machine", "batch", "all slow", "all fast", "FlexGen", "ALISA", "speed-up", slower]
    return markdown_table([*header, "alpha", "beta", "p1", "p2"], rows)


def phases(lines: Sequence[Line]) -> str:
    """Figure 12a: seconds in each phase."""
    rows = []
    for line in _where(lines, kind="phase"):
        seconds = [f"{a:.1f} / {b:.1f}" if b else "-" for a, b in zip(line["alisa"], line["flexgen"])]
        fast, slow = (
            f"{a / 1e9:.1f} / {b / 1e9:.1f}" for a, b in zip(line["alisa_bytes"], line["flexgen_bytes"])
        )
        name = f"{line['sparsity']:.0%}, {line['costs']}"
        rows.append(
            [
                name,
                line["p1"],
                line["p2"],
                f"{line['alpha']:.2f}",
                f"{line['beta']:.2f}",
                *seconds,
                fast,
                slow,
            ]
        )
    header = [
        "KV sparsity, costs",
        "p1",
        "p2",
        "alpha",
        "beta",
        "I: s",
        "II: s",
        "III: s",
        "fast: GB",
        "slow: GB",
    ]
    return markdown_table(header, rows)


def recompute(lines: Sequence[Line]) -> str:
    """Figure 12b: the gain, by where a deleted token is made again from."""
    rows = [
        [
            f"{line['sparsity']:.0%}, {line['bits']} bits, {line['costs']}",
            *(f"{line['gain'][source]:.2f}" for source in RECOMPUTE),
        ]
        for line in _where(lines, kind="recompute")
    ]
    return markdown_table(["KV sparsity, KV, costs", *RECOMPUTE], rows)


def ablation(lines: Sequence[Line]) -> str:
    """Figure 12c: the speed-up over FlexGen as techniques are added, and the factor of each."""
    rows = []
    for line in _where(lines, kind="ablation"):
        s = line["seconds"]
        steps = [f"{s[0] / x:.2f} (x {f:.2f})" for x, f in zip(s[1:], _ablation_factors(line))]
        rows.append([f"{line['sparsity']:.0%}, {line['costs']}", *steps])
    return markdown_table(["KV sparsity, costs", "sparse attention", "+ scheduling", "+ INT8"], rows)


def sensitivity(lines: Sequence[Line]) -> str:
    """What each free parameter does."""
    rows = [
        [line["change"], *(f"{x:.2f}" for x in line["speedup"]), f"{line['gain']:.2f}", *line["p2"]]
        for line in _where(lines, kind="sensitivity")
    ]
    header = [
        "changed",
        "minimum speed-up",
        "median",
        "maximum",
        "recomputation gain",
        "p2 at 20 %",
        "p2 at 80 %",
    ]
    return markdown_table(header, rows)


def overheads(lines: Sequence[Line]) -> str:
    """What would bring the largest speed-up down to the paper's."""
    rows = [
        [
            f"{line['model']}, {line['machine']}, batch {line['batch']}, {line['costs']}",
            f"{line['of'] * 1e3:.0f}",
            f"{line['seconds_per_step'] * 1e3:.0f}",
        ]
        for line in _where(lines, kind="overhead")
    ]
    return markdown_table(["workload and costs", "ALISA's step: ms", "extra ms for a speed-up of 3.0"], rows)


def sparq(lines: Sequence[Line]) -> str:
    """SparQ inside ALISA's schedule: quality from the study, speed from the model."""
    works = [f"tokens/s, {model}, batch {batch}, {n} in" for _, model, batch, n in LONG]
    rows = []
    for line in _where(lines, kind="sparq", costs=_costs(lines)[0]):
        (slower,) = _where(lines, kind="sparq", costs=_costs(lines)[1], method=line["method"])
        speeds = [
            "OOM" if a is None else f"{a:.0f} ({b:.0f})"
            for a, b in zip(line["throughput"], slower["throughput"])
        ]
        quality = [f"{line['kl']:.3f}", f"{line['bpc']:.3f}"]
        quality += [f"{line[task]:.2f}" for task in ("repetition", "needle", "multikey")]
        rows.append([f"{line['label']} `{line['method']}`", f"{line['kept']:.1%}", *quality, *speeds])
    header = ["method", "tokens kept", "lm KL", "lm BPC", "repetition", "needle", "multikey", *works]
    return markdown_table(header, rows)


def device(lines: Sequence[Line]) -> str:
    """Phases I and II as an emulated IPU executes them."""
    rows = []
    for line in _where(lines, kind="device"):
        cells = []
        for phase in ("I", "II"):
            of = line[phase]
            cells += [of["steps"], f"{of['predicted']:.1f}", f"{of['counted']:.1f}"] if of else ["-"] * 3
        name = f"{line['attention']} k={line['of_top_k']}"
        rows.append([line["trace"].split(":")[0], name, line["hot_rows"], f"{line['first']:.0f}", *cells])
    of_phases = [f"{phase}: {what}" for phase in ("I", "II") for what in ("steps", "predicted", "counted")]
    return markdown_table(["trace", "attention", "hot rows", "first step", *of_phases], rows)


def device_plan(lines: Sequence[Line]) -> str:
    """What a step of a larger layer takes on an IPU, with the hit rates that were counted."""
    rows = [
        [
            line["trace"].split(":")[0],
            f"{line['attention']} k={line['of_top_k']}",
            line["n_kv_heads"],
            line["hot_rows"],
            f"{line['hit_rate']:.3f}",
            f"{line['seconds'] * 1e6:.0f}",
            f"{line['streaming'] * 1e6:.0f}",
            f"{line['seconds_low'] * 1e6:.0f}",
            f"{line['seconds_high'] * 1e6:.0f}",
        ]
        for line in _where(lines, kind="device-plan")
    ]
    header = ["trace", "attention", "KV heads", "hot rows", "hit rate", "us"]
    return markdown_table([*header, "streaming share", "low", "high"], rows)


def device_recompute(lines: Sequence[Line]) -> str:
    """Phase III on an IPU: a token's rows loaded, or made again from the layer's input."""
    rows = []
    for line in _where(lines, kind="device-recompute"):
        again = line["input"] + line["products"]
        cells = [line[name] for name in ("rows_16", "rows_8", "input", "products")]
        factors = [f"{line[name] / again:.2f}" for name in ("rows_16", "rows_8")]
        rows.append([line["layer"], *(f"{x * 1e6:.2f}" for x in cells), *factors])
    header = [
        "layer of",
        "rows, 16 bits",
        "rows, 8 bits",
        "its input",
        "products",
        "gain, 16 bits",
        "gain, 8 bits",
    ]
    return markdown_table(header, rows)


def blocks(lines: Sequence[Line]) -> dict[str, str]:
    """Name -> text of every generated block of docs/alisa.md."""
    return {
        "published": published(lines),
        "speedups": speedups(lines),
        "phases": phases(lines),
        "recompute": recompute(lines),
        "ablation": ablation(lines),
        "sensitivity": sensitivity(lines),
        "overheads": overheads(lines),
        "sparq": sparq(lines),
        "device": device(lines),
        "device_plan": device_plan(lines),
        "device_recompute": device_recompute(lines),
    }


def read(path: Path) -> list[Line]:
    """The lines of --json.

    Raises: ValueError where there are others.
    """
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    if not lines or not all(isinstance(line, dict) and line.get("schema") == SCHEMA for line in lines):
        raise ValueError(f"alisa: json must hold lines of schema {SCHEMA}, got others in {path}")
    return lines


# ---- one workload, and the command


def one_workload(a: argparse.Namespace) -> str:
    """A schedule, phase by phase, beside FlexGen's."""
    work = Workload(MACHINES[a.machine], MODELS[a.model], a.batch, a.input, a.output)
    attention, costs = Attention(a.sparsity, a.bits), Costs(recompute=a.recompute)
    schedule, run = best_schedule(work, attention, costs)
    dense = flexgen(work, costs)
    ends = (0, schedule.p1, schedule.p2, work.n_output)
    rows = []
    for name, first, last in zip(("I", "II", "III"), ends, ends[1:]):
        span = slice(first, last)
        parts = (run.compute, run.link, run.recompute, run.steps, dense.steps)
        rows.append([f"{name}: steps {first} to {last}", *(f"{float(np.sum(p[span])):.2f}" for p in parts)])
    header = ["phase", "compute: s", "link: s", "recompute: s", "ALISA: s", "FlexGen: s"]
    speeds = f"{run.throughput:.1f} tokens/s, FlexGen {dense.throughput:.1f} (modelled)"
    return f"{schedule}\n\n{markdown_table(header, rows)}\n\n{speeds}"


def check_flags(parser: argparse.ArgumentParser, a: argparse.Namespace) -> None:
    """Refuse flags that would change nothing."""
    one = ("machine", "batch", "input", "output", "sparsity", "bits", "recompute")
    if a.write:
        only(parser, a, "--write")
    elif a.plots is not None:
        only(parser, a, "--plots")
    elif a.model is not None:
        only(parser, a, "--model", *one)
    elif a.device is not None:
        only(parser, a, "--device", "json", "trace", "layers", "hot_rows")
    else:
        refuse(parser, a, "without --model", *one)
        refuse(parser, a, "without --device", "trace", "layers", "hot_rows")


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments()
    a = parser.parse_args(argv)
    check_flags(parser, a)
    if a.write:
        for name, text in blocks(read(RESULTS)).items():
            replace_block(DOCUMENT, name, text)
        return 0
    if a.plots is not None:
        import alisa_plots

        alisa_plots.draw(read(RESULTS), a.plots)
        return 0
    check_output(parser, "--json", a.json)
    if a.model is not None:
        try:
            print(one_workload(a))
        except ValueError as error:
            parser.error(str(error))
        return 0
    progress = Progress()
    try:
        if a.device is not None:
            lines = alisa_device.lines_of(a.trace, a.layers, a.hot_rows, progress.step)
            lines += alisa_device.plan_lines(lines, PLANNED_FOR)
            tables = {"device": device(lines), "device_plan": device_plan(lines)}
        else:
            lines = alisa_lines.everything(ACCURACY, progress.step) + alisa_device.recompute_lines()
            tables = blocks(lines)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    progress.step(None)
    if a.json is not None:
        with a.json.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    print("\n\n".join(f"{name}\n\n{text}" for name, text in tables.items()))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
