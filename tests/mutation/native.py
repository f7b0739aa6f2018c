# SPDX-License-Identifier: Apache-2.0
"""Rebuilds what one broken C++ file belongs to, and nothing else.

A folder of links holds the objects of an existing build of the tree (`pip install -e .` or `pip install .`).
What depends on the broken file is compiled there, from the copied tree, at -O1, and the module is linked
again. popc compiles a broken codelet and links it with the other codelets of the existing object.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from covering import tool
from tree import ROOT

#: tests build these themselves, from the copied tree
BUILT_BY_TESTS = ("poplar_ops/popart/", "emulator/popc/")
CODELETS = ("poplar_ops/codelets/", "poplar_ops/arith/")
CPU = ("poplar_ops/cpu/", "poplar_ops/bindings/cpu")
#: objects to compile for one header; others keep the unbroken one
MOST_OBJECTS = 6


class DoesNotBuild(Exception):
    """The compiler refused the mutant; the text says why."""


class Native:
    """Builds broken modules below `folder`, and puts the unbroken ones back.

    Args:
        tree: the copied tree.
    """

    def __init__(self, folder: Path, tree: Path) -> None:
        self._tree = tree
        builds = sorted((ROOT / "build").glob("*/build.ninja"), key=lambda path: path.stat().st_mtime)
        if not builds:
            raise ValueError("mutation: C++ needs a build of the tree: pip install -e .")
        self.built = builds[-1].parent
        self._objects = folder / "objects"
        self._broken = folder / "broken"
        shutil.rmtree(self._objects, ignore_errors=True)
        for path in self.built.rglob("*"):
            link = self._objects / path.relative_to(self.built)
            if path.is_dir():
                link.mkdir(parents=True, exist_ok=True)
            elif path.suffix in (".o", ".a", ".so"):
                link.symlink_to(path)
        self._dependencies: dict[str, set[str]] = {}
        for block in self._ninja("-t", "deps").split("\n\n"):
            first, *rest = block.strip().splitlines() or [""]
            if first.split(":")[0].endswith(".o"):
                paths = (os.path.normpath(self.built / line.strip()) for line in rest)
                self._dependencies[first.split(":")[0]] = {
                    path for path in paths if path.startswith(str(ROOT))
                }
        self._commands: dict[str, list[str]] = {}

    def _ninja(self, *arguments: str) -> str:
        return subprocess.run(
            [tool("ninja"), *arguments], cwd=self.built, stdout=subprocess.PIPE, check=True, text=True
        ).stdout

    def target_of(self, file: str, tests: list[str]) -> str | None:
        """What to build for a file so that these tests meet it; None: nothing."""
        if file.startswith(BUILT_BY_TESTS) or file.endswith("cycles.hpp"):
            return None
        if file.startswith("emulator/") and any(test.startswith("emulator/") for test in tests):
            return None
        if file.startswith(CODELETS) and any(test.startswith("tests/codelets/") for test in tests):
            return "codelets"
        if file.startswith(CPU) or any(test.startswith(("tests/cpu/", "tests/vectors/")) for test in tests):
            return "_cpu"
        return "codelets" if file.startswith(CODELETS) else "_core"

    def build(self, target: str, file: str) -> dict[str, str]:
        """Build the target of the copied tree, where this file is broken: the environment for its tests."""
        shutil.rmtree(self._broken, ignore_errors=True)
        self._broken.mkdir(parents=True)
        if target == "codelets":
            return self._build_codelets(file)
        changed = [
            o for o, of in self._dependencies.items() if str(ROOT / file) in of and self._is_of(target, o)
        ]
        if not changed:
            raise DoesNotBuild(f"no object of {target} depends on {file}")
        kept = [o for o in changed if "portable" in o or "kernels/" not in o][:MOST_OBJECTS]
        changed = kept or changed[:1]
        try:
            for name in changed:
                self._run(self._compiled(target, name))
            module = self._link(target, changed)
        finally:  # also of a mutant that does not build
            for name in changed:
                self._restore(name)
        link = self._tree / "python" / "sparq_ipu" / module.name
        link.unlink(missing_ok=True)
        link.symlink_to(module)
        return {}

    def same_object(self, target: str, file: str, broken: str, mended: str) -> bool:
        """Whether a broken source file compiles to the very object that it compiles to unbroken."""
        if target == "codelets" or not file.endswith(".cpp"):
            return False
        names = [
            o for o, of in self._dependencies.items() if str(ROOT / file) in of and self._is_of(target, o)
        ]
        digests = []
        for text in (broken, mended):
            (self._tree / file).write_text(text, encoding="utf-8")
            for name in names[:1]:
                self._run(self._compiled(target, name))
                digests.append(hashlib.sha256((self._objects / name).read_bytes()).digest())
                self._restore(name)
        return len(digests) == 2 and digests[0] == digests[1]

    def mend(self) -> None:
        """The tree's package has the unbroken modules again."""
        package = self._tree / "python" / "sparq_ipu"
        for path in [*self.built.glob("poplar_ops/_core*.so"), *self.built.glob("poplar_ops/cpu/_cpu*.so")]:
            link = package / path.name
            link.unlink(missing_ok=True)
            link.symlink_to(path)
        link = package / "sparq_codelets.gp"
        link.unlink(missing_ok=True)
        link.symlink_to(self.built / "poplar_ops" / link.name)

    def _of(self, target: str) -> list[str]:
        if target not in self._commands:
            self._commands[target] = self._ninja("-t", "commands", target).splitlines()
        return self._commands[target]

    def _is_of(self, target: str, name: str) -> bool:
        return any(f" -o {name} " in command for command in self._of(target))

    def _compiled(self, target: str, name: str) -> str:
        """The command that compiles an object of the copied tree, quicker than in the existing build."""
        (self._objects / name).unlink(missing_ok=True)
        command = next(c for c in self._of(target) if f" -o {name} " in c and " -c " in c)
        command = re.sub(r"-isystem \S*pip-build-env\S*pybind11\S*", f"-isystem {_pybind11()}", command)
        several = Path(command.split()[-1])
        if several.parent.name == "Unity":  # a source that includes several
            own = self._broken / several.name
            own.write_text(
                several.read_text(encoding="utf-8").replace(f"{ROOT}/", f"{self._tree}/"), encoding="utf-8"
            )
            command = command.replace(str(several), str(own))
        for folder in ("poplar_ops", "emulator", "tests"):
            command = command.replace(f"{ROOT}/{folder}", f"{self._tree}/{folder}")
        return command.replace("-O3", "-O1") + " -Wno-error -w"

    def _restore(self, name: str) -> None:
        (self._objects / name).unlink(missing_ok=True)
        (self._objects / name).symlink_to(self.built / name)

    def _link(self, target: str, changed: list[str]) -> Path:
        """The module with the objects that changed."""
        commands = self._of(target)
        archives = [c for c in commands if "/ar qc" in c and any(f" {name} " in c for name in changed)]
        last = next(c for c in commands if " -shared " in c)
        output = re.search(r" -o (\S+\.so)", last)
        assert output
        try:
            for command in archives:
                (self._objects / _archive(command)).unlink(missing_ok=True)
                self._run(command)
            (self._objects / output[1]).unlink(missing_ok=True)
            self._run(last.split(" && ")[1])
        finally:
            for name in map(_archive, archives):
                self._restore(name)
        module = self._broken / Path(output[1]).name
        shutil.move(str(self._objects / output[1]), module)
        return module

    def _build_codelets(self, file: str) -> dict[str, str]:
        folder = self._tree / "poplar_ops"
        sources = sorted([*(folder / "codelets").iterdir(), *(folder / "arith").iterdir()])
        included = {p: re.findall(r'#include "(?:.*/)?(.*)"', p.read_text(encoding="utf-8")) for p in sources}
        names: set[str] = set()
        more = {Path(file).name}
        while more > names:
            names = more
            more = names | {path.name for path, others in included.items() if names & set(others)}
        changed = [path for path in sources if path.name in names and path.suffix == ".cpp"]
        if not changed:
            raise DoesNotBuild(f"no codelet includes {file}")
        others, output = self._broken / "others.gp", self._broken / "sparq_codelets.gp"
        digests = [hashlib.sha1((ROOT / p.relative_to(self._tree)).read_bytes()).hexdigest() for p in changed]
        with zipfile.ZipFile(self.built / "poplar_ops" / output.name) as built:
            with zipfile.ZipFile(others, "w") as kept:
                for unit in built.namelist():
                    if not any(digest.startswith(unit[:16]) for digest in digests):
                        kept.writestr(unit, built.read(unit))
        popc = [sys.executable, str(self._tree / "emulator" / "popc" / "popc.py"), "-O1", "-I"]
        self._run(shlex.join([*popc, str(folder), str(others), *map(str, changed), "-o", str(output)]))
        return {"SPARQ_CODELETS": str(self._broken)}

    def _run(self, command: str) -> None:
        done = subprocess.run(
            command,
            shell=True,
            cwd=self._objects,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "CXX": "g++"},
        )
        if done.returncode:
            raise DoesNotBuild(done.stdout[-2000:])


def _pybind11() -> str:
    return subprocess.check_output(
        [sys.executable, "-c", "import pybind11; print(pybind11.get_include())"], text=True
    ).strip()


def _archive(command: str) -> str:
    return re.findall(r"/ar qc (\S+)", command)[0]
