# SPDX-License-Identifier: Apache-2.0
"""What the tests build themselves, and keep between runs: copies of sources, in a folder whose name says with
what they are built.

What is built is out of date when its sources or its tools differ. Sources are compared by content with the
copy (a time says little: an archive restores old ones), and CMake builds what depends on those that differ.
Other tools have another folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Iterator

#: what compilers and CMake read beside their arguments
VARIABLES = ("CXX", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CMAKE_BUILD_TYPE", "CMAKE_GENERATOR")


def tool(name: str) -> str | None:
    """A build tool: beside the interpreter (from PyPI), else on PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def compiler() -> str | None:
    """The C++ compiler, as CMake chooses it."""
    return os.environ.get("CXX") or next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


def _version(program: str | None) -> str:
    if program is None:
        return ""
    return subprocess.run(
        [*program.split(), "--version"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def key(*inputs: object) -> str:
    """Names the tools of a build, and what else it depends on."""
    tools = [sys.executable, sys.version]
    for program in (compiler(), tool("cmake"), tool("ninja")):
        tools += [str(program), _version(program)]
    tools += [f"{name}={os.environ.get(name)}" for name in VARIABLES]
    return hashlib.sha256("\n".join([*tools, *map(str, inputs)]).encode()).hexdigest()[:16]


def files(folder: Path) -> Iterator[Path]:
    """Every file below the folder, relative to it, but for what Python caches."""
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(folder)


def copy_changed(source: Path, target: Path) -> None:
    """Makes `target` a copy of `source`. Files that are the same are left alone: programs of another worker
    may be using them, and what is built from them stays up to date. The others are as old as this copy, so
    that what depends on them is built again."""
    wanted = set(files(source))
    for file in set(files(target)) - wanted:
        (target / file).unlink()
    for file in wanted:
        copy_changed_file(source / file, target / file)


def copy_changed_file(source: Path, target: Path) -> None:
    """`copy_changed` of one file."""
    if not target.exists() or target.read_bytes() != source.read_bytes():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One build at a time in a folder, whatever the number of test processes."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def cmake(source: Path, where: Path, *options: str) -> None:
    """Configure and build. AssertionError with the end of the output if that fails."""
    program, ninja = tool("cmake"), tool("ninja")
    assert program is not None
    configure = [program, "-S", str(source), "-B", str(where), *options]
    if ninja:
        configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    for command in (configure, [program, "--build", str(where), "--parallel", "2"]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout[-8000:]
