# SPDX-License-Identifier: Apache-2.0
"""The generator and the runner: on a toy project, one function of which is tested well and one badly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("universalmutator")
pytest.importorskip("coverage")

import generate
from native import DoesNotBuild, Native
from tree import Tree

ROOT = Path(__file__).resolve().parents[2]
SOURCE = '''"""A toy."""


def clamped(x: int, low: int, high: int) -> int:
    """x, or the nearest end: 1 + 1 = 2."""
    if x < low:  # 1 + 1
        return low
    return x if x < high else high


def doubled(x: int) -> int:
    return 2 * x


def unused(x: int) -> int:
    if x < 0:
        raise ValueError("x must be at least 0, got 1 + 1")
    return x + 1
'''
TESTS = """
import toy

def test_clamped():
    assert [toy.clamped(x, 2, 4) for x in range(7)] == [2, 2, 2, 3, 4, 4, 4]

def test_doubled():
    assert toy.doubled(0) == 0
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tmp_path_factory.mktemp("toy")
    for name, text in (("python/toy.py", SOURCE), ("tests/test_toy.py", TESTS)):
        (project / name).parent.mkdir()
        (project / name).write_text(text)
    (project / "tests" / "mutation").mkdir()
    for command in ("init -q", "-c user.name=a -c user.email=a@b commit -q --allow-empty -m toy"):
        subprocess.run(["git", *command.split()], cwd=project, check=True)
    run(project, "--map")
    return project


def run(project: Path, *arguments: str) -> tuple[str, list[dict]]:
    """What the tool prints, and its JSON lines."""
    lines = project.parent / "lines.json"
    lines.unlink(missing_ok=True)
    command = [sys.executable, str(ROOT / "tests" / "mutation"), "--tree", str(project), "--json", str(lines)]
    done = subprocess.run(
        [*command, "--copy", str(project.parent / "copy"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout, [
        json.loads(line) for line in lines.read_text().splitlines()
    ] if lines.exists() else []


def test_tests_that_notice_and_tests_that_do_not(toy: Path) -> None:
    """Each mutant runs the tests of its own lines: `clamped` is guarded, `doubled` is hardly."""
    results: dict[int, set[str]] = {}
    for seed in "12":
        output, lines = run(toy, "python/toy.py", "--seed", seed, "--count", "50")
        for line in lines:
            results.setdefault(line["line"], set()).add(line["result"])
            if line["result"] == "killed" and not line["detail"].startswith("the process ended"):
                assert (line["line"] < 9) == line["detail"].endswith("test_clamped")
    assert results[7] == {"killed"} and "SURVIVED" in results[12]
    assert "killed" not in results[16] | results[18]
    assert "| python |" in output


def test_a_seed_repeats(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(SOURCE)
    first, second, other = (list(generate.Generator(tmp_path, ["toy.py"], seed).draw()) for seed in (7, 7, 8))
    assert first == second != other


def test_a_survivor_that_was_judged(toy: Path) -> None:
    _, lines = run(toy, "python/toy.py", "--seed", "1", "--count", "50")
    survivor = next(line for line in lines if line["result"] == "SURVIVED")
    judged = toy / "tests" / "mutation" / "judged.tsv"
    judged.write_text(f"fingerprint\tfile\twhy\n{survivor['fingerprint']}\ttoy.py\tit is a toy\n")
    (toy / "python" / "toy.py").write_text("# the line moves\n" + SOURCE)
    _, lines = run(toy, "python/toy.py", "--seed", "1", "--count", "50")
    (toy / "python" / "toy.py").write_text(SOURCE)
    judged.unlink()
    drawn = [line for line in lines if line["fingerprint"] == survivor["fingerprint"]]
    assert all((line["result"], line["detail"]) == ("judged", "it is a toy") for line in drawn)
    moved = generate.Mutant("python/elsewhere/toy.py", 99, f"  {survivor['old']}", survivor["new"])
    assert moved.fingerprint == survivor["fingerprint"]


@pytest.mark.skipif(not list(ROOT.glob("build/*/build.ninja")), reason="no build of the tree")
def test_what_a_mutant_that_does_not_build_took_is_back(tmp_path: Path) -> None:
    """The objects that the next mutant is linked with."""
    tree = Tree(tmp_path)
    native = Native(tmp_path, tree.root)
    for target, file in (
        ("_core", "poplar_ops/src/combine.cpp"),
        ("_cpu", "poplar_ops/bindings/cpu_cache.cpp"),
    ):
        assert native.target_of(file, []) == target
        with tree.broken(file, "no C++"), pytest.raises(DoesNotBuild, match="error"):
            native.build(target, file)
        assert all(path.exists() for path in tmp_path.rglob("*.o"))


def test_comments_docstrings_annotations_and_messages_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(SOURCE)
    drawn = {m for seed in range(30) for m in generate.Generator(tmp_path, ["toy.py"], seed).draw()}
    assert {mutant.line for mutant in drawn} <= {6, 7, 8, 12, 16, 17, 18}
    assert all("got 1 + 1" in mutant.new for mutant in drawn if "ValueError" in mutant.new)
    assert all(mutant.new.endswith("# 1 + 1") for mutant in drawn if mutant.line == 6 and "#" in mutant.new)


def test_comments_and_texts_of_cpp_are_left_alone(tmp_path: Path) -> None:
    text = '// 1 + 1\n#include "a1.hpp"\nint f(int x) { return x + 1; } // 1 + 1\nthrow E("1 + 1");\n'
    (tmp_path / "toy.cpp").write_text(text)
    drawn = {m for seed in range(30) for m in generate.Generator(tmp_path, ["toy.cpp"], seed).draw()}
    assert {mutant.line for mutant in drawn} == {3}
    assert all(mutant.new.endswith("// 1 + 1") for mutant in drawn)
