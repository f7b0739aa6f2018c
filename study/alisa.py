#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ALISA's scheduler (arXiv:2403.17312), simulated, beside what the paper publishes: see docs/alisa.md.

    python study/alisa.py                                     tables: half a minute
    python study/alisa.py --json runs/alisa.jsonl             and a line for each run
    python study/alisa.py --write                             the published lines into docs/alisa.md
    python study/alisa.py --plots docs                        pictures like its figures 9 and 12 (matplotlib)

The model is study/sparq_study/alisa. Nothing here was measured on a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Callable, Sequence

import alisa_lines
from alisa_lines import LONG, SCHEMA, Line
from shared import ROOT, Parser, Progress, check_output, guarded, only

from sparq_ipu.commands.tables import markdown_table, replace_block
from sparq_study.alisa import RECOMPUTE, read_published

RESULTS = ROOT / "study/results/alisa.jsonl"
ACCURACY = ROOT / "study/results/accuracy_smollm2_135m.jsonl"
DOCUMENT = ROOT / "docs/alisa.md"


def arguments() -> argparse.ArgumentParser:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--json", type=Path, metavar="FILE", help="write JSON lines, one for each run")
    add("--plots", type=Path, metavar="FOLDER", help="draw the published lines there (needs matplotlib)")
    text = f"only put study/results/{RESULTS.name} into docs/{DOCUMENT.name}"
    add("--write", action="store_true", help=text)
    return parser


def _where(lines: Sequence[Line], **wanted: Any) -> list[Line]:
    return [line for line in lines if all(line.get(name) == value for name, value in wanted.items())]


def _costs(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(line["costs"] for line in lines if "costs" in line))


def _speed(line: Line, name: str) -> str:
    return "OOM" if line[name] is None else f"{line['tokens'] / line[name]:.0f}"


def _range(values: Sequence[float]) -> str:
    low, high = (f"{x:.2f}" for x in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _schedule(line: Line) -> list[str]:
    return [f"{line['alpha']:.2f}", f"{line['beta']:.2f}"]


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


def published(lines: Sequence[Line]) -> str:
    """Each statement of the paper, and what the model says with both costs."""
    said = read_published()

    def interval(name: str) -> str:
        return f"{said[name].low:g} to {said[name].high:g}"

    def slowdown(index: int) -> Callable[[str], str]:
        return lambda costs: f"{_where(lines, kind='offloading', costs=costs)[-1]['slowdown'][index]:.2f}"

    def speedups_of(costs: str) -> list[float]:
        return [line["speedup"] for line in _where(lines, kind="speedup", costs=costs)]

    def in_range(costs: str) -> str:
        low, high = said["speedup_flexgen"].low, said["speedup_flexgen"].high
        return f"{sum(low <= x <= high for x in speedups_of(costs))} of {len(speedups_of(costs))}"

    def of_phases(costs: str) -> list[Line]:
        return _where(lines, kind="phase", costs=costs)

    def faster(costs: str) -> str:
        pairs = (pair for p in of_phases(costs) for pair in zip(p["alisa"], p["flexgen"]))
        return "yes" if all(alisa < flexgen for alisa, flexgen in pairs if flexgen) else "no"

    def share_of_bytes(costs: str) -> str:
        return _range([sum(p["alisa_bytes"]) / sum(p["flexgen_bytes"]) for p in of_phases(costs)])

    def gains(bits: int) -> Callable[[str], str]:
        return lambda costs: _range(
            [line["gain"]["input-slow"] for line in _where(lines, kind="recompute", costs=costs, bits=bits)]
        )

    def factors(costs: str) -> str:
        last = _where(lines, kind="ablation", costs=costs)[-1]
        return ", ".join(f"{x:.1f}" for x in _ablation_factors(last))

    statements: list[tuple[str, str, str, Callable[[str], str]]] = [
        ("slowdown_half_offloaded", "half of KV in slow memory: time x", "3", slowdown(0)),
        ("slowdown_all_offloaded", "all of KV in slow memory: time x", "5", slowdown(1)),
        (
            "speedup_flexgen",
            "speed-up over FlexGen, all points",
            interval("speedup_flexgen"),
            lambda costs: _range(speedups_of(costs)),
        ),
        ("speedup_flexgen", "of the points, in that range", "all", in_range),
        (
            "speedup_grows_with_batch",
            "speed-up grows with the batch",
            "yes",
            lambda costs: _growth(_where(lines, kind="speedup", costs=costs)),
        ),
        ("faster_in_all_phases", "faster than FlexGen in every phase", "yes", faster),
        (
            "phase_three_later",
            "phase III begins at step, by sparsity",
            "later",
            lambda costs: ", ".join(str(p["p2"]) for p in of_phases(costs)),
        ),
        ("smaller_in_phase_three", "bytes of KV at the end, ALISA / FlexGen", "below 1", share_of_bytes),
        *(
            ("recompute_gain", f"gain of recomputation, {bits} bits", interval("recompute_gain"), gains(bits))
            for bits in (16, 8)
        ),
        ("techniques_equal", "factors of sparsity, schedule, INT8 at 80 %", "equal", factors),
    ]
    header = ["statement", "paper", *(f"model, {c}" for c in _costs(lines)), "where"]
    rows = [
        [what, paper, *map(model, _costs(lines)), said[name].source.split(", ")[-1]]
        for name, what, paper, model in statements
    ]
    return markdown_table(header, rows)


# ---- tables


def speedups(lines: Sequence[Line]) -> str:
    """Figure 9: tokens a second of all policies, and the speed-up with the other costs too."""
    stated, slower = _costs(lines)
    both = zip(_where(lines, kind="speedup", costs=stated), _where(lines, kind="speedup", costs=slower))
    policies = ("offload_everything", "all_fast", "flexgen", "alisa")
    rows = []
    for line, other in both:
        cells = [f"{line['model']}, {line['machine']}", line["batch"]]
        cells += [_speed(line, policy) for policy in policies]
        cells += [f"{of['speedup']:.2f}" for of in (line, other)]
        rows.append([*cells, *_schedule(line), line["p1"], line["p2"]])
    header = ["model, machine", "batch", "all slow", "all fast", "FlexGen", "ALISA", "speed-up", slower]
    return markdown_table([*header, "alpha", "beta", "p1", "p2"], rows)


def phases(lines: Sequence[Line]) -> str:
    """Figure 12a: seconds in each phase."""
    rows = []
    for line in _where(lines, kind="phase"):
        seconds = [f"{a:.1f} / {b:.1f}" if b else "-" for a, b in zip(line["alisa"], line["flexgen"])]
        sizes = (f"{a / 1e9:.1f} / {b / 1e9:.1f}" for a, b in zip(line["alisa_bytes"], line["flexgen_bytes"]))
        name = f"{line['sparsity']:.0%}, {line['costs']}"
        rows.append([name, line["p1"], line["p2"], *_schedule(line), *seconds, *sizes])
    header = ["KV sparsity, costs", "p1", "p2", "alpha", "beta", "I: s", "II: s", "III: s"]
    return markdown_table([*header, "fast: GB", "slow: GB"], rows)


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
    header = ["changed", "minimum speed-up", "median", "maximum", "recomputation gain"]
    return markdown_table([*header, "p2 at 20 %", "p2 at 80 %"], rows)


def overheads(lines: Sequence[Line]) -> str:
    """What would bring the largest speed-up down to the paper's."""
    rows = [
        [
            f"{line['model']}, {line['machine']}, batch {line['batch']}, {line['costs']}",
            *(f"{line[name] * 1e3:.0f}" for name in ("of", "seconds_per_step")),
        ]
        for line in _where(lines, kind="overhead")
    ]
    return markdown_table(["workload and costs", "ALISA's step: ms", "extra ms for a speed-up of 3.0"], rows)


def sparq(lines: Sequence[Line]) -> str:
    """SparQ inside ALISA's schedule: quality from the study, speed from the model."""
    stated, slower = (_where(lines, kind="sparq", costs=costs) for costs in _costs(lines))
    rows = []
    for line, other in zip(stated, slower):
        speeds = [
            "OOM" if a is None else f"{a:.0f} ({b:.0f})"
            for a, b in zip(line["throughput"], other["throughput"])
        ]
        quality = [f"{line['kl']:.3f}", f"{line['bpc']:.3f}"]
        quality += [f"{line[task]:.2f}" for task in ("repetition", "needle", "multikey")]
        rows.append([f"{line['label']} `{line['method']}`", f"{line['kept']:.1%}", *quality, *speeds])
    works = [f"tokens/s, {model}, batch {batch}, {n} in" for _, model, batch, n in LONG]
    header = ["method", "tokens kept", "lm KL", "lm BPC", "repetition", "needle", "multikey", *works]
    return markdown_table(header, rows)


def blocks(lines: Sequence[Line]) -> dict[str, str]:
    """Name -> text of every generated block of docs/alisa.md."""
    tables = (published, speedups, phases, recompute, ablation, sensitivity, overheads, sparq)
    return {table.__name__: table(lines) for table in tables}


def read(path: Path) -> list[Line]:
    """The lines of --json.

    Raises: ValueError where there are others.
    """
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    if not lines or not all(isinstance(line, dict) and line.get("schema") == SCHEMA for line in lines):
        raise ValueError(f"alisa: json must hold lines of schema {SCHEMA}, got others in {path}")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments()
    a = parser.parse_args(argv)
    if a.write:
        only(parser, a, "--write")
        for name, text in blocks(read(RESULTS)).items():
            replace_block(DOCUMENT, name, text)
        return 0
    if a.plots is not None:
        import alisa_plots

        only(parser, a, "--plots")
        alisa_plots.draw(read(RESULTS), a.plots)
        return 0
    check_output(parser, "--json", a.json)
    progress = Progress()
    try:
        lines = alisa_lines.everything(ACCURACY, progress.step)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    progress.step(None)
    if a.json is not None:
        with a.json.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    print("\n\n".join(f"{name}\n\n{text}" for name, text in blocks(lines).items()))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
