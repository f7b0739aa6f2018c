# SPDX-License-Identifier: Apache-2.0
"""Builds the emulator with the tests' device programs once, outside the tree, and runs them.

What is built is a copy of the emulator's folder and of this one, with nothing else beside them: so every test
here also shows that the emulator needs nothing else of the project.

SPARQ_TEST_BUILD_DIR names a build of the emulator made with -DSPARQ_BUILD_TESTS=ON to use instead.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Iterator

import pytest

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = Path("poplar_ops") / "emulator"
FOLDERS = (EMULATOR, Path("tests") / "emulator")


def tool(name: str) -> str | None:
    """A build tool: beside the interpreter (from PyPI), else on PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def files(folder: Path) -> Iterator[Path]:
    """Every file below the folder, relative to it, but for what Python caches."""
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(folder)


def copy_changed(source: Path, target: Path) -> None:
    """Makes `target` a copy of `source`. Files that are the same are left alone: programs of another worker
    may be using them, and what is built from them stays up to date."""
    wanted = set(files(source))
    for file in set(files(target)) - wanted:
        (target / file).unlink()
    for file in wanted:
        old, new = (source / file).stat(), target / file
        if not new.exists() or (new.stat().st_mtime_ns, new.stat().st_size) != (old.st_mtime_ns, old.st_size):
            new.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / file, new)


def build(tree: Path, where: Path) -> None:
    """Copies the folders to `tree` and builds them, alone, in `where`."""
    cmake, ninja = tool("cmake"), tool("ninja")
    if cmake is None:
        pytest.skip("needs cmake")
    where.mkdir(parents=True, exist_ok=True)
    with open(where / "lock", "w") as lock:  # one build for all workers of a parallel run
        fcntl.flock(lock, fcntl.LOCK_EX)
        for folder in FOLDERS:
            copy_changed(ROOT / folder, tree / folder)
        configure = [cmake, "-S", str(tree / EMULATOR), "-B", str(where), "-DSPARQ_BUILD_TESTS=ON"]
        configure += [f"-DPython3_EXECUTABLE={sys.executable}"]
        if ninja:
            configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        for command in (configure, [cmake, "--build", str(where), "-j2"]):
            r = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert r.returncode == 0, r.stdout[-8000:]


class Programs:
    """The built programs: run one, get its output."""

    def __init__(self, where: Path) -> None:
        self.build = where
        self.where = where / "tests"
        self.codelets = str(self.where / "test_codelets.gp")

    def path(self, name: str) -> str:
        return str(self.where / f"emulator_{name}")

    def run(self, name: str, *args, stdin=None, threads: int | None = None, text: bool = True, **variables):
        env = {**os.environ, **variables}
        if threads is not None:
            env["SPARQ_EMULATOR_THREADS"] = str(threads)
        r = subprocess.run(
            [self.path(name), *map(str, args)],
            input=stdin,
            capture_output=True,
            text=text,
            env=env,
            timeout=300,
        )
        if r.returncode:
            raise RuntimeError(f"{name} failed with status {r.returncode}:\n{r.stderr[-20000:]}")
        return r.stdout

    def json_lines(self, name: str, *args, **kwargs) -> list:
        return [json.loads(line) for line in self.run(name, *args, **kwargs).splitlines()]

    def json(self, name: str, *args, **kwargs):
        (line,) = self.json_lines(name, *args, **kwargs)
        return line


@pytest.fixture(scope="session")
def programs() -> Programs:
    given = os.environ.get("SPARQ_TEST_BUILD_DIR")
    if given:
        where = Path(given)
    else:
        tree = hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]
        top = Path(tempfile.gettempdir()) / f"sparq-emulator-tests-{os.getuid()}-{tree}"
        where = top / "build"
        build(top / "tree", where)
    return Programs(where)
