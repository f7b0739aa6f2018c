# SPDX-License-Identifier: Apache-2.0
"""Which tests run a line of Python, by coverage.py.

A map in a build folder knows lines. `--map` makes it: all tests run once. Without a map, and for C++, test
files serve that name most of what a source file defines.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Callable

from recording import SETTINGS
from tree import Tree
from warm import PACKAGES, Warm

#: where the tests of C++ are, by the folder of the source
OF_ROOMS = {
    "poplar_ops/codelets/": "tests/codelets",
    "poplar_ops/arith/": "tests/codelets",
    "poplar_ops/cpu/": "tests/cpu",
    "poplar_ops/popart/": "tests/popart",
    "poplar_ops/": "tests/ops",
    "emulator/": "emulator/tests",
    "bench/": "tests/bench",
    "study/": "study/tests",
    "reference/": "tests/reference",
    "": "tests",
}
OF_CODELETS = ("poplar_ops/codelets/", "poplar_ops/arith/")
#: tests that meet most of their room
OF_MUCH = (
    *("test_reference_contract.py", "test_cpu_bits.py", "test_cpu_few_bits.py"),
    *("test_attention.py", "test_tiered.py"),
    *("emulator/tests/test_programs.py", "emulator/tests/test_counters.py"),
)
#: tests that meet a room of C++ without the names of what it defines
OF_DECODER = (
    "poplar_ops/cpu/decoder/",
    [
        "tests/cpu/test_cpu_few_bits.py",
        "tests/models/test_rotary.py",
        "tests/models/test_few_bits_step.py",
    ],
)
#: tests of estimates, which compile them
OF_CYCLES = ("cycles.hpp", ["tests/device_model/test_counted_cycles.py"])
#: seconds of a test file that no map has
UNKNOWN = 3.0
#: what these test is no source file
LEFT_OUT = ("tests/mutation/", "tests/packaging/")


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
        self._settings = folder / "coveragerc"
        sources = ",".join(str(tree.root / name) for name in (*PACKAGES, "bench"))
        (folder / "parts").mkdir(parents=True, exist_ok=True)
        self._settings.write_text(SETTINGS.format(sources=sources, data=folder / "parts" / "part"))

    def record(self, test: str) -> str:
        """Run one test file; what to print of it."""
        times = self._folder / "times.json"
        times.unlink(missing_ok=True)
        run = self._warm([test]).pytest(
            [test],
            600,
            self._folder / "output",
            record={"settings": str(self._settings), "times": str(times)},
        )
        seconds = json.loads(times.read_text()) if times.exists() else {}
        name = self._folder / "tests" / (test.replace("/", "+") + ".json")
        name.parent.mkdir(exist_ok=True)
        name.write_text(
            json.dumps(
                {
                    "test": test,
                    "digest": _digest(self._tree.root / test),
                    "seconds": seconds,
                    "all": run.seconds,
                }
            )
        )
        return f"{test}: {len(seconds)} tests in {run.seconds:.0f} s, status {run.status}"

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
        self._python = None
        for path in sorted((folder / "tests").glob("*.json")):
            part = json.loads(path.read_text())
            if _digest(root / part["test"]) != part.get("digest"):
                continue  # a test file that changed may have other tests
            self.seconds.update(part["seconds"])
            if part["seconds"]:
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
        if self._python is None or not file.endswith(".py"):
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

    def _with_includers(self, file: str) -> str:
        """The text of a file and, of a header of codelets, of what includes it: tests name vertices."""
        texts = {file: (self._root / file).read_text(encoding="utf-8")}
        if file.startswith(OF_CODELETS) and file.endswith(".hpp"):
            others = [p for folder in OF_CODELETS for p in sorted((self._root / folder).iterdir())]
            names, before = {Path(file).name}, 0
            while len(names) > before:
                before = len(names)
                for path in others:
                    other = path.read_text(encoding="utf-8")
                    if names & set(re.findall(r'#include "(?:.*/)?(.*)"', other)):
                        names.add(path.name)
                        texts[path.name] = other
        return "\n".join(texts.values())

    def _of_file(self, file: str) -> list[str]:
        """Test files of the room, and of the name of a Python file anywhere: those first whose names are like
        the file's and that name most of what it defines; all of the room if none is or does."""
        if file.startswith(OF_DECODER[0]):
            return OF_DECODER[1]
        if file.endswith(OF_CYCLES[0]):
            return OF_CYCLES[1]
        room = next(tests for start, tests in OF_ROOMS.items() if file.startswith(start))
        text, stem = self._with_includers(file), Path(file).stem
        words = {stem, *re.findall(r"^ *(?:class|def|struct) ([A-Za-z]\w+)", text, re.MULTILINE)}
        found: dict[str, int] = {}
        for test in sorted({p for top in ("tests", room) for p in (self._root / top).rglob("test_*.py")}):
            name = test.relative_to(self._root).as_posix()
            is_named = file.endswith(".py") and stem in test.stem
            if name.startswith(LEFT_OUT) or not (is_named or name.startswith(room)):
                continue
            in_name = len({*stem.split("_")} & {*test.stem.split("_")})
            found[name] = len(words & {*re.findall(r"\w+", test.read_text(encoding="utf-8"))}) + 9 * in_name
        if room != "tests" and not any(found.values()):
            found = dict.fromkeys(found, 1)
        of_much = OF_MUCH if room != "tests" else ()
        every = [name for name in found if found[name] or name.endswith(of_much)]
        return sorted(every, key=lambda name: (not name.endswith(of_much), -found[name], name))
