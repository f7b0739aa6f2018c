# SPDX-License-Identifier: Apache-2.0
"""Builds the module that lowers the PopART operators over stand-in declarations of PopART."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import builds
import popart_models
import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("poplar_ops", "tests/popart")
#: build trees survive between runs: only what changed is built again
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sparq-ipu-tests"


def _build(directory: Path, core: ModuleType, toolkit: Path) -> Path:
    pybind11 = pytest.importorskip("pybind11", reason="pybind11 is not installed")
    compiler = builds.compiler()
    if not compiler:
        pytest.skip("no C++ compiler")
    if not builds.tool("cmake"):
        pytest.skip("no cmake")
    tree = directory / "tree"
    for folder in FOLDERS:
        builds.copy_changed(ROOT / folder, tree / folder)
    builds.cmake(
        tree / "tests" / "popart",
        directory / "build",
        "-DCMAKE_BUILD_TYPE=None",
        "-DCMAKE_CXX_FLAGS=-O0",
        f"-DCORE={core.__file__}",
        f"-Dpoplar_DIR={toolkit / 'lib' / 'cmake' / 'poplar'}",
        f"-DCMAKE_CXX_COMPILER={compiler}",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        "-Wno-dev",
    )
    return next((directory / "build").glob("_popart_lowering*.so"))


@pytest.fixture(scope="session")
def lowering() -> ModuleType:
    """The module _popart_lowering; skips where it can not be built."""
    core = pytest.importorskip("sparq_ipu._core", reason="the extension module is not built")
    if sys.platform == "darwin":
        pytest.skip("nothing can be linked with an extension module")
    emulator = pytest.importorskip("sparq_ipu.emulator")
    try:
        toolkit = emulator.prefix()
    except FileNotFoundError:
        pytest.skip("built without the emulator")
    directory = CACHE / f"popart-{builds.key(ROOT, toolkit)}"
    with builds.alone(directory):
        module = _build(directory, core, toolkit)
    spec = importlib.util.spec_from_file_location("_popart_lowering", module)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def make(lowering: ModuleType) -> Any:
    """Builds small models: make.add(op, ...) adds an operator with inputs of its own to make.model."""
    model = lowering.Model()
    return SimpleNamespace(model=model, add=functools.partial(popart_models.add_op, model))
