# SPDX-License-Identifier: Apache-2.0
"""Builds the module that lowers the PopART operators over stand-in declarations of PopART."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).resolve().parent
#: build trees survive between runs: only what changed is built again
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sparq-ipu-tests"


def _build(directory: Path) -> Path:
    pybind11 = pytest.importorskip("pybind11", reason="pybind11 is not installed")
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        pytest.skip("no C++ compiler")
    scripts = sysconfig.get_path("scripts")
    cmake = shutil.which("cmake", path=scripts) or shutil.which("cmake")
    if not cmake:
        pytest.skip("no cmake")
    ninja = shutil.which("ninja", path=scripts) or shutil.which("ninja")
    configure = [
        *(cmake, "-S", str(HERE), "-B", str(directory)),
        *(["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []),
        "-DCMAKE_BUILD_TYPE=None",
        "-DCMAKE_CXX_FLAGS=-O1",
        f"-DCMAKE_CXX_COMPILER={compiler}",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        "-Wno-dev",
    ]
    for command in (configure, [cmake, "--build", str(directory), "--parallel", "2"]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout[-6000:]
    return next(directory.glob("_popart_lowering*.so"))


@pytest.fixture(scope="session")
def lowering() -> ModuleType:
    """The module _popart_lowering; skips where it can not be built."""
    tag = f"popart-{sys.implementation.cache_tag}-{zlib.crc32(str(HERE).encode()):08x}"
    directory = Path(os.environ.get("SPARQ_POPART_BUILD_DIR") or CACHE / tag)
    directory.mkdir(parents=True, exist_ok=True)
    with _exclusive(directory / "lock"):
        module = _build(directory)
    spec = importlib.util.spec_from_file_location("_popart_lowering", module)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


class _exclusive:
    """One build at a time, whatever the number of test processes."""

    def __init__(self, path: Path):
        self.path = path

    def __enter__(self) -> None:
        import fcntl

        self.file = open(self.path, "w")
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self.file.close()
