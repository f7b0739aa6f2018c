# SPDX-License-Identifier: Apache-2.0
"""study/reuse.py: its lines are the simulation's, and docs/reuse.md is what the published ones say."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import reuse

from sparq_reference import SparqSettings
from sparq_study import traces

ROOT = Path(__file__).resolve().parents[3]
REAL = ROOT / "tests/data/smollm2_steps.npz"
BLOCK = re.compile(r"<!-- begin (\w+):[^>]*-->\n(.*?)<!-- end \1 -->", re.DOTALL)


def test_lines_are_the_simulations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "lines"
    words = ["--input", str(REAL), "--k", "32", "64", "--hot", "1", "4", "--from-step", "40"]
    assert reuse.main([*words, "--json", str(out)]) == 0
    lines = reuse.read(out)
    assert len(lines) == 2 * 2 * 2 * 2  # layers, k, policies, sizes
    trace = traces.load(REAL)
    settings = [SparqSettings(32, 32, 8), SparqSettings(32, 64, 16)]
    for layer in (2, 20):
        for s, positions in zip(settings, traces.selected_positions(trace, layer, settings)):
            for policy in traces.POLICIES:
                for n_hot in (s.top_k, 4 * s.top_k):
                    got = traces.simulate(positions, 512, policy=policy, n_hot=n_hot, n_local=s.n_local)
                    wanted = dict(layer=layer, top_k=s.top_k, n_local=s.n_local, policy=policy, n_hot=n_hot)
                    (line,) = reuse._where(lines, **wanted)
                    assert line["hit_rate"] == round(got.hit_rate(40), 5)
                    assert line["misses_mean"] == round(float(got.misses[40:].mean()) / 2, 3)
                    assert line["misses_max"] == float(got.misses[40:].max()) / 2
                    assert (line["rank"], line["index_bits"], line["from_step"]) == (32, 4, 40)
                    assert (line["start"], line["n_steps"], line["group_size"]) == (512, 64, 3)
    shown = capsys.readouterr().out
    mean = np.mean([line["hit_rate"] for line in reuse._where(lines, top_k=64, policy="lru", n_hot=256)])
    row = next(row for row in shown.splitlines() if "| prose: play_othello | 512 | 64 |" in row)
    header = next(row for row in shown.splitlines() if row.startswith("| model | trace |"))
    assert row.split(" | ")[header.split(" | ").index("lru 4k")] == f"{mean:.3f}"


def published() -> tuple[dict[str, str], dict[str, str]]:
    """Blocks of docs/reuse.md, and what the published lines say."""
    return dict(BLOCK.findall(reuse.DOCUMENT.read_text())), reuse.blocks(reuse.read(reuse.RESULTS))


def test_the_document_is_what_the_lines_say() -> None:
    """If this fails: run `python study/reuse.py --write`, and read again what the prose claims."""
    shown, made = published()
    assert shown == {name: text + "\n" for name, text in made.items()}


def test_write_puts_an_altered_figure_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = reuse.DOCUMENT.read_text()
    altered = BLOCK.sub(lambda block: re.sub(r"(?<= )0\.\d", "8", block.group(0)), right)
    assert altered != right
    monkeypatch.setattr(reuse, "DOCUMENT", tmp_path / "reuse.md")
    reuse.DOCUMENT.write_text(altered)
    assert reuse.main(["--write"]) == 0
    assert reuse.DOCUMENT.read_text() == right


def test_made_traces_are_apart_from_recorded_ones() -> None:
    lines = reuse.read(reuse.RESULTS)
    assert {*traces.KINDS, "synthetic"} == {line["kind"] for line in lines}
    never = [line for line in lines if line["text"] == "hit rate 0"]
    assert never and all(line["hit_rate"] == 0 for line in never)
    most = [line["misses_mean"] == line["top_k"] - line["n_local"] for line in never]
    assert all(most)
    changed = [dict(line, hit_rate=0.5) if line["kind"] == "synthetic" else line for line in lines]
    old, new = reuse.blocks(lines), reuse.blocks(changed)
    assert {name for name in old if old[name] != new[name]} == {"texts"}


def test_models_and_lengths_are_apart() -> None:
    """A change of one model's lines, or of one length's, leaves the tables of the others as they are."""
    lines = [line for line in reuse.read(reuse.RESULTS) if line["kind"] != "synthetic"]
    shift = [dict(line, start=line["start"] + 1) for line in lines]
    other = [dict(line, model="another", hit_rate=0.5, misses_mean=1.0) for line in lines]
    for more, heading in ((shift, "positions before**"), (other, "**another, ")):
        before, after = (reuse.blocks(some) for some in (lines, [*lines, *more]))
        for name in ("layers", "misses"):
            assert after[name].startswith(before[name]) and heading in after[name][len(before[name]) :]
        assert set(before["texts"].splitlines()) < set(after["texts"].splitlines())


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real = ["--input", str(REAL)]
    for words, text in (
        ([], "--input or --write must be given, got none"),
        ([*real, "--hot", "0"], "--hot must be at least 1, got 0"),
        ([*real, "--from-step", "64"], "reuse: from-step must be in [0, 64), the steps of play_othello, got"),
        ([*real, "--r", "65"], "reuse: rank must be in [1, head_dim=64], got 65"),
        (["--input", str(tmp_path / "none")], "No such file or directory"),
        ([*real, "--json", str(tmp_path / "no" / "x")], "--json must be a file that can be written"),
    ):
        with pytest.raises(SystemExit):
            reuse.main(words)
        assert text in capsys.readouterr().err, words
    other = tmp_path / "other"
    other.write_text('{"schema": 0}\n')
    with pytest.raises(ValueError, match=r"^reuse: json must hold lines of schema 1, got others in "):
        reuse.read(other)
