# SPDX-License-Identifier: Apache-2.0
"""Breaks source files at random, one line at a time, and reports the changes that no test notices.

    python tests/mutation reference/                    20 mutants of the files below a folder
    python tests/mutation bench/lib --seed 7 --count 50 --minutes 10
    python tests/mutation --by-hand reference/          the list by hand (by_hand.tsv) in place of random ones
    python tests/mutation --sample --seed 7             20 mutants of the whole project
    python tests/mutation --again FILE                  survivors of a --json FILE, with ten times the tests
    python tests/mutation --map                         run all tests once, to learn which run which lines

The tests of a mutant are those that run its line, the quickest first, until one fails. Coverage finds them,
or names (covering.py). The tree is not changed: a copy in build/mutation is. C++ needs a build of the tree
(`pip install -e .`); only what depends on the broken file is compiled again.

Results:
    killed          a test failed, as it should
    SURVIVED        no test failed: a hole in the tests, or a change that makes no difference
    judged          no test failed, and judged.tsv tells why none can
    not covered     no known test runs the file
    same object     the mutant compiles to the same object; not counted
    does not build  the compiler refuses the mutant; not counted

Survivors are reported, and the status is 0. With --by-hand it is 1 for a survivor, and for a row that no
longer applies because its text is not in the file exactly once.
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Iterator, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

import by_hand
from covering import LEFT_OUT, UNKNOWN, Map, Recorder
from generate import Generator, Mutant, files_below
from native import DoesNotBuild, Native
from tree import ROOT, Tree
from warm import Run, warm_for

FOLDERS = [
    "reference",
    "python",
    *(f"poplar_ops/{room}" for room in ("arith", "codelets", "src", "cpu", "popart", "bindings")),
    "bench",
    "study/sparq_study",
    "emulator/include",
    "emulator/src",
]
#: a mutant may make a test wait for ever: seconds, beside what the tests take unbroken
PATIENCE = 40
#: seconds of tests for one mutant
BUDGET = {True: 12.0, False: 25.0}  # Python, C++
COUNTED = ("killed", "SURVIVED", "judged", "not covered")


class Result(NamedTuple):
    """What became of a mutant."""

    name: str
    mutant: Mutant
    #: the test that failed, why none can, or what the compiler said
    detail: str
    tests: list[str]
    seconds: float


class Runner:
    """Breaks, builds, tests and mends."""

    def __init__(self, folder: Path, source: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.tree = Tree(folder, source)
        self.warm = warm_for(self.tree.root)
        self._native: Native | None = None
        #: how many times the usual seconds of tests a mutant gets
        self.generosity = 1
        self.map = Map(folder / "map", self.tree.root)
        judged = source / "tests" / "mutation" / "judged.tsv"
        lines = judged.read_text(encoding="utf-8").splitlines()[1:] if judged.exists() else []
        self._judged = {line.split("\t")[0]: line.split("\t")[2] for line in lines}
        #: files whose tests pass unbroken, and tests that do not
        self._trusted: set[str] = set()
        self._distrusted: set[str] = set()
        if (self.tree.root / "python" / "sparq_ipu").is_dir():  # tests of Python use the modules too
            self.native().mend()

    def native(self) -> Native:
        if self._native is None:
            self._native = Native(self.folder, self.tree.root)
            toolkit = self.tree.root / "python" / "sparq_ipu" / "toolkit"
            toolkit.unlink(missing_ok=True)
        return self._native

    def run(self, mutant: Mutant, text: str) -> Result:
        """`text`: the broken file's."""
        begin = time.monotonic()
        in_python = mutant.file.endswith(".py")
        tests = self.map.tests_of(mutant.file, mutant.line, self.generosity * BUDGET[in_python])
        tests = [test for test in tests if test not in self._distrusted]
        name, detail = "not covered", ""
        if tests:
            target = None if in_python else self.native().target_of(mutant.file, tests)
            tests = self._of_target(target, tests)
            name, detail = self._result(mutant, text, target, tests)
        if name == "SURVIVED" and mutant.fingerprint in self._judged:
            name, detail = "judged", self._judged[mutant.fingerprint]
        return Result(name, mutant, detail, tests, round(time.monotonic() - begin, 1))

    def _result(self, mutant: Mutant, text: str, target: str | None, tests: list[str]) -> tuple[str, str]:
        environment: dict[str, str] = {}
        mended = self.tree.text(mutant.file)
        with self.tree.broken(mutant.file, text):
            try:
                if target:
                    environment = self.native().build(target, mutant.file)
                run = self.test(tests, environment)
                if (
                    run.status == 0
                    and target
                    and self.native().same_object(target, mutant.file, text, mended)
                ):
                    return "same object", ""
            except DoesNotBuild as error:
                return "does not build", str(error)
            finally:
                if target:
                    self.native().mend()
        if run.status == 0:
            return "SURVIVED", ""
        if run.status in (3, 4, 5):  # of pytest: its own error, wrong arguments, no tests
            return "not covered", run.output[-200:]
        if "ninja: build stopped" in run.output:
            return "does not build", run.output[-500:]
        file = run.killer.split("::")[0]
        if file not in self._trusted:  # a test that fails unbroken tells nothing
            test = run.killer if "::" in run.killer else None
            again = self.test([test] if test else tests, {})
            if again.status != 0:
                bad = test or run.killer
                self._distrusted |= {t for t in tests if t == bad or bad.startswith(t + "::")} or set(tests)
                rest = [t for t in tests if t not in self._distrusted]
                return (
                    self._result(mutant, text, target, rest)
                    if rest
                    else ("not covered", f"fails unbroken: {bad}")
                )
            self._trusted.add(file)
        return "killed", run.killer

    @staticmethod
    def _of_target(target: str | None, tests: list[str]) -> list[str]:
        """Tests that meet what is built: codelets or one of the modules."""
        of_cpu = [t for t in tests if t.startswith(("tests/cpu/", "tests/vectors/", "tests/models/"))]
        if target == "_cpu":
            return of_cpu or tests
        return [test for test in tests if test not in of_cpu] if target else tests

    def test(self, tests: list[str], environment: dict[str, str]) -> Run:
        seconds = sum(self.map.seconds.get(test, UNKNOWN) for test in tests)
        if any(test.startswith("tests/popart/") for test in tests):
            toolkit = self.tree.root / "python" / "sparq_ipu" / "toolkit"
            installed = [*self.native().built.glob("install/*"), Path(sysconfig.get_path("purelib"))]
            found = [p / "sparq_ipu" / "toolkit" for p in installed if (p / "sparq_ipu" / "toolkit").is_dir()]
            if found and not toolkit.is_symlink():
                toolkit.symlink_to(found[0])
        builds = any(test.startswith(("emulator/", "tests/popart/")) for test in tests)
        patience = min(PATIENCE + 2 * seconds, 90 * self.generosity) + 100 * builds
        return self.warm(tests).pytest(
            ["-x", *tests], patience, self.folder / "output", environment=environment
        )


def record(runner: Runner, tests: list[str]) -> None:
    """Make the map: all tests, or those of some paths."""
    recorder = Recorder(runner.folder / "map", runner.tree, runner.warm)
    root = runner.tree.root
    found = [
        p
        for name in tests or ["tests", "emulator/tests"]
        for p in [root / name, *(root / name).rglob("test_*.py")]
    ]
    for path in sorted(p for p in found if p.is_file() and p.name.startswith("test_")):
        name = path.relative_to(root).as_posix()
        if not name.startswith(LEFT_OUT):
            print(recorder.record(name), flush=True)
    recorder.combine()


def drawn(runner: Runner, paths: list[str], seed: int, sample: bool) -> Iterator[tuple[Mutant, str]]:
    """Random mutants with the broken texts. A sample is of the whole project, its C++ of one room."""
    root = runner.tree.root
    files = files_below(root, paths or FOLDERS)
    if sample:
        of_cpp = ("poplar_ops", "emulator/src")
        rooms = [room for room in FOLDERS if room.startswith(of_cpp) and "popart" not in room]
        room = rooms[seed % len(rooms)] + "/"
        files = [f for f in files if f.endswith(".py") or f.startswith(room)]
    for mutant in Generator(root, files, seed).draw():
        yield mutant, mutant.broken(runner.tree.text(mutant.file))


def listed(runner: Runner, paths: list[str], missing: list[str]) -> Iterator[tuple[Mutant, str]]:
    """Mutants by hand of some paths; `missing` gets a line for each that no longer applies."""
    for row in by_hand.read():
        if paths and not row.file.startswith(tuple(paths)):
            continue
        try:
            file = row.path_in(runner.tree.root).relative_to(runner.tree.root).as_posix()
            old = runner.tree.text(file)
            new = row.broken(old)
        except ValueError as error:
            missing.append(str(error))
            continue
        line = next(i for i, (a, b) in enumerate(zip(old.split("\n"), new.split("\n")), 1) if a != b)
        yield Mutant(file, line, row.old, row.new), new


def again(runner: Runner, path: Path) -> Iterator[tuple[Mutant, str]]:
    """Mutants of a file of JSON lines that survived, where their lines are now."""
    for line in path.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        text = runner.tree.text(one["file"]) if (runner.tree.root / one["file"]).exists() else ""
        if one["result"] == "SURVIVED" and one["old"] in text.split("\n"):
            numbers = [n for n, old in enumerate(text.split("\n"), 1) if old == one["old"]]
            number = min(numbers, key=lambda n: abs(n - one["line"]))
            mutant = Mutant(one["file"], number, one["old"], one["new"])
            yield mutant, mutant.broken(text)


def table(results: list[Result]) -> Iterator[str]:
    """How many of each folder."""
    rows: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for result in results:
        folder = next((f for f in FOLDERS if result.mutant.file.startswith(f + "/")), "others")
        rows[folder][result.name] += 1
    yield "| folder | mutants | killed | judged | SURVIVED | not covered |"
    yield "|---|--:|--:|--:|--:|--:|"
    for folder, of in sorted(rows.items()):
        n = sum(of[name] for name in COUNTED)
        yield f"| {folder} | {n} | {of['killed']} | {of['judged']} | {of['SURVIVED']} | {of['not covered']} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        "python tests/mutation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files or folders (with --map: of tests)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another seed draws other mutants")
    parser.add_argument("--count", type=int, default=20, metavar="M", help="mutants that build (default 20)")
    parser.add_argument("--minutes", type=float, default=1e9, metavar="T", help="end after so long")
    parser.add_argument("--sample", action="store_true", help="of the whole project; C++ of one room")
    parser.add_argument("--by-hand", action="store_true", help="the list by hand")
    parser.add_argument("--again", type=Path, metavar="FILE", help="survivors of an earlier --json FILE")
    parser.add_argument("--map", action="store_true", help="record which tests run which lines")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a JSON line for each mutant")
    parser.add_argument("--copy", type=Path, default=ROOT / "build" / "mutation", help="where the copy is")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the project to break (default: this one)")
    arguments = parser.parse_args()
    runner = Runner(arguments.copy.resolve(), arguments.tree.resolve())
    if arguments.map:
        record(runner, arguments.paths)
        return 0
    missing: list[str] = []
    if arguments.again:
        runner.generosity = 10
        every = again(runner, arguments.again)
    elif arguments.by_hand:
        every = listed(runner, arguments.paths, missing)
    else:
        every = drawn(runner, arguments.paths, arguments.seed, arguments.sample)
    end = time.monotonic() + 60 * arguments.minutes
    commit = subprocess.check_output(
        ["git", "rev-parse", "--short", "HEAD"], cwd=runner.tree.source, text=True
    ).strip()
    results: list[Result] = []
    for mutant, text in every:
        full = (
            not (arguments.by_hand or arguments.again)
            and sum(r.name in COUNTED for r in results) >= arguments.count
        )
        if full or time.monotonic() > end:
            break
        result = runner.run(mutant, text)
        results.append(result)
        print(f"{result.name:<14} {mutant.file}:{mutant.line} ({result.seconds:.0f} s)", flush=True)
        if result.name in ("SURVIVED", "judged"):
            detail = f"  # {mutant.fingerprint} {result.detail or ' '.join(result.tests[:3])}"
            print(f"    - {mutant.old.strip()}\n    + {mutant.new.strip()}{detail}", flush=True)
        if arguments.json:
            one = {"commit": commit, "seed": arguments.seed, "result": result.name, **mutant._asdict()}
            one.update(
                fingerprint=mutant.fingerprint, detail=result.detail, tests=result.tests, s=result.seconds
            )
            with arguments.json.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(one) + "\n")
    print("\n".join(table(results)), *missing, sep="\n")
    survived = any(result.name == "SURVIVED" for result in results)
    return int(arguments.by_hand and (survived or bool(missing)))


if __name__ == "__main__":
    sys.exit(main())
