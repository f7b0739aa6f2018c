# SPDX-License-Identifier: Apache-2.0
"""Which tests run a line, by coverage: coverage.py for Python (each test), gcov for C++ (each test file).

A map in a build folder knows lines. `--map` makes it: all tests run once, with modules built for coverage.
Without a map the test files serve that name most of what a source file defines.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Callable

from recording import SETTINGS
from tree import Tree
from warm import PACKAGES, Warm

#: tests of C++, by folder, and the compiled units that they are about (a regular expression of paths)
WITH_CPP = {
    "tests/codelets/": "popc-",
    "tests/device_model/": "popc-|/src/",
    "tests/cpu/": "/cpu/|bindings",
    "tests/vectors/": "/cpu/|bindings",
    "tests/ops/": "/src/|bindings",
    "tests/pod/": "/src/|bindings",
    "tests/popart/": "popart",
    "emulator/": "",
}
#: where the tests of C++ are, by the folder of the source
OF_ROOMS = {
    "poplar_ops/codelets/": "tests/codelets",
    "poplar_ops/arith/": "tests/codelets",
    "poplar_ops/cpu/": "tests/cpu",
    "poplar_ops/popart/": "tests/popart",
    "poplar_ops/": "tests/ops",
    "emulator/": "emulator/tests",
    "bench/": "tests/bench",
    "reference/": "tests/reference",
    "": "tests",
}
#: seconds of a test file that no map has
UNKNOWN = 8.0
#: what these test is no source file
LEFT_OUT = ("tests/mutation/", "tests/packaging/")
_COMPILER = """#!/bin/sh
# GCC for coverage; keeps the notes of what popc compiles in a folder that it removes.
g++ --coverage -fprofile-abs-path "$@" -O0 -Wno-error || exit
for word in "$@"; do
  case $word in */popc-*.o) test -f "${{word%.o}}.gcno" && cp "${{word%.o}}.gcno" {notes}/;; esac
done
exit 0
"""


def tool(name: str) -> str:
    """A build tool: beside the interpreter (from PyPI), else on PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name) or name


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


class Recorder:
    """Makes the map in a folder.

    Args:
        folder: of the map.
        tree: whose tests run.
        warm: the process to fork for some tests.
    """

    def __init__(self, folder: Path, tree: Tree, warm: Callable[[list[str]], Warm]) -> None:
        self._folder, self._tree, self._warm = folder, tree, warm
        self._notes = folder / "notes"
        self._notes.mkdir(parents=True, exist_ok=True)
        self._compiler = folder / "g++-coverage"
        self._compiler.write_text(_COMPILER.format(notes=self._notes))
        self._compiler.chmod(0o755)
        self._settings = folder / "coveragerc"
        sources = ",".join(str(tree.root / name) for name in (*PACKAGES, "bench"))
        (folder / "parts").mkdir(exist_ok=True)
        self._settings.write_text(SETTINGS.format(sources=sources, data=folder / "parts" / "part"))

    def build(self) -> Path:
        """The modules of the tree, built for coverage: their folder."""
        folder = self._folder / "cmake"
        pybind11 = subprocess.check_output(
            [sys.executable, "-m", "pybind11", "--cmakedir"], text=True
        ).strip()
        options = [
            f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
            "-DSPARQ_USE_EMULATOR=ON",
            f"-Dpybind11_DIR={pybind11}",
        ]
        options += [f"-DPython_EXECUTABLE={sys.executable}", f"-DCMAKE_CXX_COMPILER={self._compiler}"]
        options += ["-DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF"]
        configure = [tool("cmake"), "-S", str(self._tree.root), "-B", str(folder), "-G", "Ninja", *options]
        for command in (configure, [tool("cmake"), "--build", str(folder), "-j2"]):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return folder / "poplar_ops"

    def record(self, test: str) -> str:
        """Run one test file; what to print of it."""
        counters = self._folder / "counters"
        shutil.rmtree(counters, ignore_errors=True)
        times = self._folder / "times.json"
        times.unlink(missing_ok=True)
        environment = {"GCOV_PREFIX": str(counters), "CXX": str(self._compiler)}
        run = self._warm([test]).pytest(
            [test],
            600,
            self._folder / "output",
            environment=environment,
            record={"settings": str(self._settings), "times": str(times)},
        )
        seconds = json.loads(times.read_text()) if times.exists() else {}
        name = self._folder / "tests" / (test.replace("/", "+") + ".json")
        name.parent.mkdir(exist_ok=True)
        folder = next((name for name in WITH_CPP if test.startswith(name)), None)
        native = self._lines(counters, WITH_CPP[folder]) if folder else {}
        name.write_text(
            json.dumps(
                {
                    "test": test,
                    "digest": _digest(self._tree.root / test),
                    "seconds": seconds,
                    "all": run.seconds,
                    "native": native,
                }
            )
        )
        return f"{test}: {len(seconds)} tests in {run.seconds:.0f} s, status {run.status}"

    def _lines(self, counters: Path, units: str) -> dict[str, list[int]]:
        """Lines of the tree's C++ that counters saw, by file. gcov takes long, so it reads some units."""
        found: dict[str, set[int]] = collections.defaultdict(set)
        data = [path for path in counters.rglob("*.gcda") if re.search(units, str(path))]
        for path in data:
            notes = Path("/") / path.relative_to(counters).with_suffix(".gcno")
            notes = notes if notes.exists() else self._notes / notes.name
            if notes.exists():
                path.with_suffix(".gcno").symlink_to(notes)
        if not data:
            return {}
        done = subprocess.run(
            ["gcov", "--json-format", "--stdout", *map(str, data)],
            cwd=counters,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for line in done.stdout.splitlines():
            for file in json.loads(line)["files"]:
                name = self._in_tree(file["file"])
                if name:
                    found[name].update(one["line_number"] for one in file["lines"] if one["count"])
        return {file: sorted(lines) for file, lines in found.items() if lines}

    def _in_tree(self, path: str) -> str | None:
        """A file's name in the tree; tests build from copies of its folders."""
        path = os.path.normpath(path)
        for folder in ("poplar_ops", "emulator"):
            begin = path.rfind(f"/{folder}/")
            if begin >= 0 and (self._tree.root / path[begin + 1 :]).is_file():
                return path[begin + 1 :]
        return None

    def combine(self) -> None:
        """One file of Python coverage."""
        import coverage

        covered = coverage.Coverage(config_file=str(self._settings))
        covered.combine([str(self._folder / "parts")], keep=True)
        covered.save()


class Map:
    """The map of a folder."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._root = root
        self.seconds: dict[str, float] = {}
        self._native: dict[str, dict[str, list[int]]] = {}
        self._python = None
        for path in sorted((folder / "tests").glob("*.json")):
            part = json.loads(path.read_text())
            if _digest(root / part["test"]) != part.get("digest"):
                continue  # a test file that changed may have other tests
            self.seconds.update(part["seconds"])
            if part["seconds"]:
                self._native[part["test"]] = part["native"]
                self.seconds[part["test"]] = part["all"]
        if (folder / "parts" / "part").exists():
            import coverage

            self._python = coverage.CoverageData(str(folder / "parts" / "part"))
            self._python.read()

    def tests_of(self, file: str, line: int, budget: float) -> list[str]:
        """Tests that run this line, those that end soonest first, for so many seconds in all."""
        found = self._of_line(file, line) or self._of_file(file)
        chosen: list[str] = []
        for test in sorted(found, key=lambda test: self.seconds.get(test, UNKNOWN)):
            budget -= self.seconds.get(test, UNKNOWN)
            if budget < 0 and chosen:
                break
            chosen.append(test)
        return chosen

    def _of_line(self, file: str, line: int) -> set[str]:
        if not file.endswith(".py"):
            native = [(test, set(part.get(file, ()))) for test, part in self._native.items()]
            for near in range(line, max(0, line - 8), -1):
                found = {test for test, lines in native if near in lines}
                if found:
                    return found
            return set()
        if self._python is None:
            return set()
        lines = self._python.contexts_by_lineno(str(self._root / file))
        known = {near: {test for test in tests if test in self.seconds} for near, tests in lines.items()}
        for near in range(line, max(0, line - 12), -1):
            if "" in lines.get(near, ()):
                return self._of_import(file, near, known)
            if known.get(near):
                return known[near]
        return set()

    def _of_import(self, file: str, line: int, known: dict[int, set[str]]) -> set[str]:
        """A line runs at the import alone: a constant matters where the file names it, the head of a function
        for its body, and anything else to whatever uses the file."""
        text = (self._root / file).read_text(encoding="utf-8").split("\n")
        name = re.match(r"(\w+)(:[^=]*)? = ", text[line - 1])
        if name:
            users = [n for n, other in enumerate(text, 1) if re.search(rf"\b{name[1]}\b", other)]
        else:
            users = list(range(line, line + 12))
        return set().union(*(known.get(n, set()) for n in users)) or set().union(*known.values())

    def _of_file(self, file: str) -> list[str]:
        """Test files of the room that name most of what the file defines, or all of them if none does."""
        room = next(tests for start, tests in OF_ROOMS.items() if file.startswith(start))
        text = (self._root / file).read_text(encoding="utf-8")
        words = {Path(file).stem, *re.findall(r"^(?:class|def|struct) ([A-Za-z]\w+)", text, re.MULTILINE)}
        found: dict[str, int] = {}
        for test in sorted((self._root / room).rglob("test_*.py")):
            name = test.relative_to(self._root).as_posix()
            if not name.startswith(LEFT_OUT):
                text = f"{test.stem[5:]} {test.read_text(encoding='utf-8')}"
                found[name] = len(words & set(re.findall(r"\w+", text)))
        most = sorted(found, key=lambda name: (-found[name], name))
        return [name for name in most if found[name]] or most
