# SPDX-License-Identifier: Apache-2.0
"""study/alisa.py: its lines are the simulator's of today, docs/alisa.md is what the published ones say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import alisa
import alisa_lines
import alisa_plots
import pytest

from sparq_study.alisa import MACHINES, MODELS, Workload, read_published

ROOT = Path(__file__).resolve().parents[3]
BLOCK = re.compile(r"<!-- begin (\w+):[^>]*-->\n(.*?)<!-- end \1 -->", re.DOTALL)
LINES = alisa.read(alisa.RESULTS)


def same(a: object, b: object) -> bool:
    """Equal but for the last digits: machines differ in the rounding of a sum."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return a == pytest.approx(b, rel=1e-3, abs=2e-4)
    return a == b


def test_the_document_is_what_the_lines_say() -> None:
    """If this fails: run `python study/alisa.py --write`, and read again what the prose claims."""
    shown = dict(BLOCK.findall(alisa.DOCUMENT.read_text()))
    assert shown == {name: text + "\n" for name, text in alisa.blocks(LINES).items()}


def test_write_puts_an_altered_figure_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = alisa.DOCUMENT.read_text()
    altered = BLOCK.sub(lambda block: re.sub(r"(?<= )1\.\d", "8", block.group(0)), right)
    assert altered != right
    monkeypatch.setattr(alisa, "DOCUMENT", tmp_path / "alisa.md")
    alisa.DOCUMENT.write_text(altered)
    assert alisa.main(["--write"]) == 0
    assert alisa.DOCUMENT.read_text() == right


@pytest.mark.parametrize("costs", ["stated", "figure 1"])
def test_lines_are_the_simulators_of_today(costs: str) -> None:
    """Some of each kind; if this fails: write study/results/alisa.jsonl anew, with --json."""
    chosen = alisa_lines.variants()[costs]
    made = [
        alisa_lines.speedup(Workload(MACHINES[machine], MODELS[model], batch), costs, chosen)
        for machine, model, batch in (("V100-16", "LLaMA-7B", 16), ("H100-80", "OPT-30B", 64))
    ]
    made.append(alisa_lines.phases(costs, chosen, 0.8))
    made.append(alisa_lines.recomputation(costs, chosen, 0.8, 16))
    made.append(alisa_lines.ablation(costs, chosen, 0.4))
    made += alisa_lines.offloading(costs, chosen)
    for line in made:
        assert any(same(line, published) for published in LINES), line


def test_the_overhead_is_the_largest_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = alisa._where(LINES, kind="overhead", costs="stated")
    monkeypatch.setattr(alisa_lines, "POINTS", (("V100-16", "LLaMA-7B"), (line["machine"], line["model"])))
    monkeypatch.setattr(alisa_lines, "BATCHES", (line["batch"],))
    assert same(alisa_lines.overhead_for(3.0, alisa_lines.Costs(), "stated"), line)


def test_pictures_show_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = pytest.importorskip("matplotlib.figure", reason="plots need matplotlib (extra `plot`)")
    drawn: dict[Path, Any] = {}
    monkeypatch.setattr(figures.Figure, "savefig", lambda self, path, **_: drawn.update({path: self.axes}))
    monkeypatch.setattr(figures.Figure, "tight_layout", lambda self: None)
    alisa_plots.draw(LINES, tmp_path)
    throughput, phases = (drawn[tmp_path / f"alisa_{name}.png"] for name in ("throughput", "phases"))
    of_first = alisa._where(LINES, kind="speedup", costs="stated", model="OPT-6.7B", machine="V100-16")
    assert throughput[0].get_title() == "OPT-6.7B, V100-16"
    shown = [bar.get_height() for bar in throughput[0].containers[-1]]  # ALISA's
    assert shown == pytest.approx([line["tokens"] / line["alisa"] for line in of_first])
    ends = [line.get_ydata()[-1] for line in phases[1].lines[:4]]
    (line,) = alisa._where(LINES, kind="phase", costs="stated", sparsity=0.8)
    assert ends == pytest.approx([b / 1e9 for b in (*line["alisa_bytes"], *line["flexgen_bytes"])], rel=1e-3)
    (line,) = alisa._where(LINES, kind="ablation", costs="stated", sparsity=0.8)
    assert phases[3].lines[-1].get_ydata() == pytest.approx([line["seconds"][0] / s for s in line["seconds"]])


def test_quality_is_that_of_the_accuracy_page() -> None:
    """The numbers beside SparQ's and ALISA's speeds are those that docs/study.md shows."""
    measured = alisa_lines.quality(alisa.ACCURACY)
    page = (ROOT / "docs/study.md").read_text()
    for line in alisa._where(LINES, kind="sparq"):
        assert measured[line["method"]] == {name: line[name] for name in measured[line["method"]]}
    third = measured["alisa@sparq:k=256"]
    shown = [float(r.split("|")[3].split()[0]) for r in page.splitlines() if r.startswith("| `alisa` |")][:4]
    assert shown == pytest.approx([third[t] for t in ("kl", "repetition", "needle", "multikey")], abs=6e-4)
    assert measured["dense"]["kept"] == 1 and measured["dense"]["kl"] == 0


def test_what_figure_1_is_read_for() -> None:
    """The factor makes the model's slowdown that of the figure; that of the half follows."""
    said = read_published()
    (line,) = alisa._where(LINES, kind="offloading", costs="figure 1", batch=alisa_lines.FIGURE_1_BATCH)
    wanted = [said["slowdown_half_offloaded"].low, said["slowdown_all_offloaded"].low]
    assert line["slowdown"] == pytest.approx(wanted, rel=0.01)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text('{"schema": 2}\n')
    with pytest.raises(ValueError, match="must hold lines of schema 1"):
        alisa.read(tmp_path / "other")
