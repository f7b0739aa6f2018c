# SPDX-License-Identifier: Apache-2.0
"""A copy of the project's tree, in which files are broken, modules built, and tests run."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from mutants import Mutant

ROOT = Path(__file__).resolve().parents[2]

#: tests of these folders need none of the modules, or build what they need
WITHOUT_MODULES = ("tests/reference", "emulator/", "tests/packaging")
#: their tests are linked with the toolkit of an installation
POPART = "poplar_ops/popart/"
#: what a change of a codelet makes necessary to build
CODELETS = "codelets"
#: seconds after which a test run counts as one that failed: a mutant may wait for ever
PATIENCE = 1200


class BuildFailed(Exception):
    """The modules could not be built; the text says why."""


class CopiedTree:
    """The copy. `folder` is kept between runs: what was built there stays, and only what changed is built.

    Args:
        modules: where the modules of the tree are built already; None: they are built in `folder`, as those
            of a mutant in C++ are in any case.
    """

    def __init__(self, folder: Path, modules: Path | None = None) -> None:
        self.root = folder / "tree"
        self._modules = modules
        self._build_folder = folder / "cmake"
        self._is_built = False
        #: what was built of broken source last
        self._broken: str | None = None
        #: where the object of broken codelets is; those of the tree stay beside the modules
        self._codelets: Path | None = None
        self._codelets_folder = folder / "codelets"
        self._toolkit = self.root / "python" / "sparq_ipu" / "toolkit"
        self._copy()

    def _copy(self) -> None:
        """Make the copy what the tree is now. Files that are the same keep their time, for the build."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            stdout=subprocess.PIPE,
        ).stdout.decode()
        wanted = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
        for path in list(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            if path.is_file() and not path.is_symlink() and name not in wanted:
                path.unlink()
        for name in sorted(wanted):
            source, target = ROOT / name, self.root / name
            if not target.exists() or target.read_bytes() != source.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)

    def text(self, file: str) -> str:
        return (self.root / file).read_text(encoding="utf-8")

    def write(self, file: str, text: str) -> None:
        (self.root / file).write_text(text, encoding="utf-8")

    def prepare(self, mutants: list[Mutant]) -> None:
        """The modules of the source as it is, if the tests of these mutants want them."""
        self._codelets = None
        if self._toolkit.is_symlink():  # tests of the emulator would take it for the one that they test
            self._toolkit.unlink()
        if not any(needs_modules(mutant) for mutant in mutants):
            return
        if self._modules and not self._is_built:
            self._link(self._modules)
        elif not self._is_built:
            self.build("all")
        elif self._broken and any(target_of(mutant) != self._broken for mutant in mutants):
            self.build(self._broken)  # the source is mended, what was built of it is not
        self._is_built = True
        if any(mutant.file.startswith(POPART) for mutant in mutants):
            self._toolkit.symlink_to(((self._modules or self._installed()) / "toolkit").resolve())

    def _installed(self) -> Path:
        """The package as it is installed of what was built here."""
        folder = self._build_folder.with_name("installed")
        self._run_build([_tool("cmake"), "--install", str(self._build_folder), "--prefix", str(folder)])
        return folder / "sparq_ipu"

    def _link(self, built: Path) -> None:
        """The tests' packages have these modules."""
        for pattern in ("_core*.so", "_cpu*.so", "cpu/_cpu*.so", "sparq_codelets.gp"):
            for module in built.glob(pattern):
                link = self.root / "python" / "sparq_ipu" / module.name
                if link.is_symlink():
                    link.unlink()
                link.symlink_to(module.resolve())

    def build_broken(self, mutant: Mutant) -> None:
        """Build what a mutant makes necessary."""
        target = target_of(mutant)
        if target == CODELETS:
            self._build_codelets(mutant.file)
        elif target:
            self.build(target, is_broken=True)

    def _build_codelets(self, file: str) -> None:
        """Those that include this file, linked with what is built of the others: all take half a minute."""
        folder = self.root / "poplar_ops"
        paths = sorted([*(folder / "codelets").iterdir(), *(folder / "arith").iterdir()])
        included = {p: re.findall(r'#include "(?:.*/)?(.*)"', p.read_text(encoding="utf-8")) for p in paths}
        names: set[str] = set()
        more = {Path(file).name}
        while more > names:
            names = more
            more = names | {path.name for path, others in included.items() if names & set(others)}
        changed = [path for path in paths if path.name in names and path.suffix == ".cpp"]
        self._codelets_folder.mkdir(parents=True, exist_ok=True)
        others, output = (self._codelets_folder / name for name in ("others.gp", "sparq_codelets.gp"))
        output.unlink(missing_ok=True)
        old = {
            hashlib.sha1((ROOT / path.relative_to(self.root)).read_bytes()).hexdigest() for path in changed
        }
        with zipfile.ZipFile(self.root / "python" / "sparq_ipu" / output.name) as built:
            with zipfile.ZipFile(others, "w") as kept:
                units = [name for name in built.namelist() if not any(o.startswith(name[:16]) for o in old)]
                assert len(units) == len(built.namelist()) - len(changed)
                for unit in units:
                    kept.writestr(unit, built.read(unit))
        self._codelets = self._codelets_folder
        popc = [sys.executable, str(self.root / "emulator" / "popc" / "popc.py"), "-O3", "-I"]
        self._run_build([*popc, str(folder), str(others), *map(str, changed), "-o", str(output)])

    def build(self, target: str, is_broken: bool = False) -> None:
        """Build a target of the copy's CMake project, for the tests' packages."""
        self._broken = target if is_broken else None
        if not (self._build_folder / "build.ninja").exists():
            pybind11 = subprocess.run(
                [sys.executable, "-m", "pybind11", "--cmakedir"],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            ).stdout.strip()
            options = {
                "CMAKE_MAKE_PROGRAM": _tool("ninja"),
                "SPARQ_USE_EMULATOR": "ON",
                "CMAKE_INTERPROCEDURAL_OPTIMIZATION": "OFF",  # linking would take longer than the tests
                "CMAKE_CXX_FLAGS_RELEASE": "-O2 -DNDEBUG",
                "Python_EXECUTABLE": sys.executable,
                "pybind11_DIR": pybind11,
            }
            if shutil.which("ccache"):
                options["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
            configure = [_tool("cmake"), "-S", str(self.root), "-B", str(self._build_folder), "-G", "Ninja"]
            self._run_build([*configure, *(f"-D{name}={value}" for name, value in options.items())])
        self._run_build([_tool("cmake"), "--build", str(self._build_folder), "-j2", "--target", target])
        self._link(self._build_folder / "poplar_ops")

    @staticmethod
    def _run_build(command: list[str]) -> None:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise BuildFailed(done.stdout[-4000:])

    def pytest(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run tests of the copy on the packages of the copy."""
        paths = [str(self.root / folder) for folder in ("python", "reference", "study")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            # A file and its mutant may have one size and one time: a cached one would be taken for the other.
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_PROFILE": "mutant",
            "SPARQ_EMULATOR_ONE_BY_ONE": "1",  # a mutant is one file: the others need not be compiled again
        }
        if self._codelets:
            environment["SPARQ_CODELETS"] = str(self._codelets)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        try:
            return subprocess.run(
                command,
                cwd=self.root,
                env=environment,
                timeout=PATIENCE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 1, f"no result after {PATIENCE} s")

    def check_packages(self) -> None:
        """The tests must see the packages of the copy: an editable installation would hide them."""
        packages = {"python": "sparq_ipu", "reference": "sparq_reference", "study": "sparq_study"}
        code = "\n".join(f"import {name}; print({name}.__file__)" for name in packages.values())
        paths = [str(self.root / folder) for folder in packages]
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        if done.stdout.count(str(self.root)) != len(packages):
            sys.exit(
                "mutation: Python must import the packages of the copy, got others (an editable "
                f"installation?): {done.stdout.strip()}"
            )


def folder_of(file: str) -> str:
    """A part of the project in C++, such as poplar_ops/cpu."""
    return "/".join(file.split("/")[:2])


def needs_modules(mutant: Mutant) -> bool:
    """Whether the tests of a mutant need the modules that are built of the whole tree."""
    return not all(test.startswith((*WITHOUT_MODULES, "-")) for test in mutant.tests)


def target_of(mutant: Mutant) -> str | None:
    """What a mutant makes necessary to build; None: nothing."""
    file = mutant.file
    if not file.startswith(("poplar_ops/", "emulator/")):
        return None
    if file.endswith("cycles.hpp") or file.startswith(POPART):
        return None  # what tests these compiles them itself
    if file.startswith("poplar_ops/codelets/") and not file.endswith("/hot_rows.hpp"):
        return CODELETS  # their headers are nobody else's, but for that one
    if file.startswith("poplar_ops/arith/"):  # everything has it
        for folders, target in ((("tests/codelets/",), CODELETS), (("tests/cpu/", "tests/vectors/"), "_cpu")):
            if all(test.startswith(folders) for test in mutant.tests):
                return target
        return "all"
    return "_cpu" if file.startswith(("poplar_ops/cpu/", "poplar_ops/bindings/cpu.cpp")) else "_core"


def _tool(name: str) -> str:
    """A build tool: beside the interpreter (from PyPI), else on PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name) or name
