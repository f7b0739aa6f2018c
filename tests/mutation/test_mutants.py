# SPDX-License-Identifier: Apache-2.0
"""The list of mutants: each can be applied, and there are some of every part of the project."""

from __future__ import annotations

import collections
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Iterator

import mutants
import pytest
import results
from copied_tree import CopiedTree, folder_of, needs_modules

ROOT = Path(__file__).resolve().parents[2]
EVERY = mutants.every()
runner = SimpleNamespace(**runpy.run_path(str(ROOT / "tests" / "mutation" / "__main__.py")))


def test_each_applies() -> None:
    def problems(mutant: mutants.Mutant) -> Iterator[str]:
        if text_of(mutant.file).count(mutant.old) != 1:
            yield f"{mutant.file}: update the old text of {mutant.name}: {mutant.old!r}"
        if mutant.old == mutant.new or not mutant.why:
            yield f"{mutant.name} must change something, and say what"
        if mutant.file.endswith(".py"):  # else no test would run
            compile(text_of(mutant.file).replace(mutant.old, mutant.new), mutant.file, "exec")
        for test in mutant.tests:
            file, _, name = test.partition("[")[0].partition("::")
            if not (ROOT / file).exists() or name not in (
                "",
                *re.findall(r"^ *def (\w+)\(", text_of(file), re.M),
            ):
                yield f"{mutant.name}: {test} must exist"

    def text_of(file: str) -> str:
        path = ROOT / file
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    assert [problem for mutant in EVERY for problem in problems(mutant)] == []


def test_every_part_has_some() -> None:
    """So many that a class of tests can not be missing without a word."""
    folders = {
        "reference/": 60,
        "poplar_ops/codelets/": 20,
        "poplar_ops/src/": 20,
        "emulator/": 20,
        "poplar_ops/cpu/": 12,
        "python/sparq_ipu/backends/": 15,
        "python/sparq_ipu/transformers/": 30,
        "python/sparq_ipu/planning/": 20,
        "study/sparq_study/accuracy/": 40,
    }
    count = collections.Counter(folder for m in EVERY for folder in folders if m.file.startswith(folder))
    assert len(EVERY) >= 250 and all(count[folder] >= n for folder, n in folders.items()), count


def product_files() -> Iterator[str]:
    """C++ and Python of the product, not of its tests."""
    for folder in ("poplar_ops", "python", "reference", "emulator", "study"):
        for path in (ROOT / folder).rglob("*"):
            name = path.relative_to(ROOT)
            is_test = "tests" in name.parts or name.name.startswith("test_")
            if path.suffix in (".py", ".cpp", ".hpp", ".h") and not is_test and "build" not in name.parts:
                yield name.as_posix()


def test_every_file_has_mutants_or_says_why_not() -> None:
    """A new file wants a mutant, or a line in without.tsv with one of these reasons."""
    lines = (ROOT / "tests" / "mutation" / "without.tsv").read_text(encoding="utf-8").splitlines()
    without = dict(line.split("\t") for line in lines[1:])
    assert sorted(set(product_files()) - {m.file for m in EVERY} - set(without)) == []
    reasons = {"declarations alone", "imports alone", "of a build against the SDK alone"}
    assert set(without.values()) <= reasons


def test_names_and_places_are_there_once() -> None:
    assert len({m.name for m in EVERY}) == len({(m.file, m.old, m.new) for m in EVERY}) == len(EVERY)


def run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "tests" / "mutation"), *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_it_lists() -> None:
    done = run("--list", "reference/")
    assert done.returncode == 0 and "sparq_reference/numerics-1: " in done.stdout
    assert run("--list", "no/such/folder").returncode != 0


def test_a_sample_is_of_every_folder_and_can_be_repeated() -> None:
    first, second = (run("--list", "--sample").stdout for _ in range(2))
    seed = first.split()[7]
    assert run("--list", "--sample", "--seed", seed).stdout == first
    assert first != second and "10 mutants" in first
    of_seeds = {folder_of(m.file) for seed in range(100) for m in runner.sampled(EVERY, seed)}
    assert of_seeds >= {folder_of(m.file) for m in EVERY if not m.file.endswith(".py")}


class Tree:
    """A copy whose tests end with a status."""

    def __init__(self, status: int, output: str = "FAILED tests/some.py::test - x\n") -> None:
        self.status, self.output = status, output

    def text(self, file: str) -> str:
        return (ROOT / file).read_text(encoding="utf-8")

    def write(self, file: str, text: str) -> None:
        pass

    def build_broken(self, mutant: mutants.Mutant) -> None:
        pass

    def pytest(self, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.CompletedProcess([], self.status, self.output)


@pytest.mark.parametrize(
    ("status", "expected"),
    [(0, "SURVIVED"), (1, "killed"), (-11, "killed"), *[(status, "did not run") for status in (2, 3, 4, 5)]],
)
def test_only_a_failed_test_kills(status: int, expected: str) -> None:
    """And a process that ended: 2 to 5 say that pytest could not try."""
    mutant = next(m for m in EVERY if m.file.endswith(".py") and not m.survives)
    assert runner.result_of(mutant, Tree(status))[0] == expected


def test_what_a_test_can_not_build_is_not_killed() -> None:
    output = (
        "E  a.cpp:3: error: no such name\nE  ninja: build stopped: subcommand failed.\nERROR tests/some.py\n"
    )
    mutant = next(m for m in EVERY if m.file.startswith("emulator/src/") and not needs_modules(m))
    result, detail = runner.result_of(mutant, Tree(1, output))
    assert result == "did not build" and detail.endswith("a.cpp:3: error: no such name")


def test_what_was_built_of_a_mutant_is_built_again_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant in Python, or of other modules, must not meet modules of broken source."""
    builds = []
    monkeypatch.setattr(CopiedTree, "_copy", lambda self: None)
    monkeypatch.setattr(CopiedTree, "_link", lambda self, built: None)
    monkeypatch.setattr(CopiedTree, "_run_build", staticmethod(lambda command: builds.append(command[-1])))
    tree = CopiedTree(tmp_path, modules=tmp_path)
    (tmp_path / "cmake").mkdir()
    (tmp_path / "cmake" / "build.ninja").touch()
    in_cpp, of_cpu, in_python = (
        next(m for m in EVERY if m.file.startswith(folder) and needs_modules(m))
        for folder in ("poplar_ops/src/", "poplar_ops/cpu/", "python/sparq_ipu/planning/")
    )
    tree.prepare([in_python])
    assert not builds
    for mutant in (in_cpp, in_cpp, of_cpu):
        tree.prepare([mutant])
        tree.build_broken(mutant)
    tree.prepare([in_python])
    tree.prepare([in_python])
    assert builds == ["_core", "_core", "_core", "_cpu", "_cpu"]


def test_only_mutants_of_popart_meet_the_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator's tests would be linked with its library, and not with what is broken."""
    monkeypatch.setattr(CopiedTree, "_copy", lambda self: None)
    (tmp_path / "toolkit").mkdir()
    tree = CopiedTree(tmp_path, modules=tmp_path)
    package = tree.root / "python" / "sparq_ipu"
    package.mkdir(parents=True)
    of_popart, of_emulator = (
        next(m for m in EVERY if m.file.startswith(folder))
        for folder in ("poplar_ops/popart/", "emulator/src/")
    )
    for wanted, expected in (([of_popart], True), ([of_popart], True), ([of_emulator], False)):
        tree.prepare(wanted)
        assert (package / "toolkit").is_dir() is expected


def test_the_table_of_results_reads() -> None:
    """Each mutant has a row, and nothing else; where no test failed, the row says why, or what is missing."""
    rows = results.read()
    listed = {(m.file, m.why) for m in EVERY}
    assert not listed - set(rows)  # a new one is run with --record
    assert not set(rows) - listed  # the row of one that is gone goes too
    for row in rows.values():
        assert (ROOT / row.file).suffix in (".py", ".cpp", ".hpp", ".h") and row.why
        assert row.last in ("killed", "known", "SURVIVED") and row.noticed_by, row
        noticed = ("tests/", "emulator/tests/", "study/tests/", "no result")
        assert row.last != "killed" or row.noticed_by.startswith(noticed), row


def test_results_are_recorded_and_the_first_is_kept(tmp_path: Path) -> None:
    table = tmp_path / "results.tsv"
    one, other = EVERY[:2]
    results.record(table, one, "SURVIVED", "")
    results.record(table, other, "known", "a\treason\nof two lines")
    results.record(table, one, "killed", "FAILED tests/some.py::test_it[4-x] - AssertionError")
    rows = results.read(table)
    assert rows[one.file, one.why][2:] == ("SURVIVED", "killed", "tests/some.py::test_it")
    assert rows[other.file, other.why][2:] == ("known", "known", "a reason of two lines")
    assert len(rows) == 2
