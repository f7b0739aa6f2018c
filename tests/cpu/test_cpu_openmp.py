# SPDX-License-Identifier: Apache-2.0
"""The kernels on the threads of an OpenMP runtime: one made for this test, which counts.

A process that has begun to use a runtime goes on, so each test is a process of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
import ctypes, os, sys
import numpy as np
from sparq_ipu import KVCache, _cpu, dense_attention, sparq_attention

rng = np.random.default_rng(0)
key, value = rng.standard_normal((2, 1, 2, 5000, 16)).astype(np.float16)
query = rng.standard_normal((1, 6, 16)).astype(np.float16)
cache = KVCache(1, 2, 16, 5000, device="cpu", n_threads=3)  # with barriers
cache.append(key, value)

def attend():
    sparse = sparq_attention(query, cache, rank=8, top_k=50)
    return np.stack([sparse, dense_attention(query, cache)]).view(np.uint16)

expected = attend()  # on threads of its own
assert not _cpu.use_openmp()  # no runtime is here yet
runtime = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
"""

USED = """
assert (attend() == expected).all() and runtime.regions() == 0  # not before it is asked for
assert _cpu.use_openmp() and _cpu.use_openmp()
assert (attend() == expected).all()
assert (runtime.regions(), runtime.members()) == (2, 6), (runtime.regions(), runtime.members())
"""

SMALLER = """
assert _cpu.use_openmp()
for most in (1, 2):
    runtime.limit_teams(most)
    before = runtime.regions()
    assert (attend() == expected).all()
    assert runtime.regions() == before + 2  # asked, and gave too few
"""

FORK = """
assert _cpu.use_openmp()
child = os.fork()
if child == 0:
    same = False
    try:
        same = not _cpu.use_openmp()  # asked again, it is still refused
        same = same and bool((attend() == expected).all()) and runtime.regions() == 0
    finally:
        os._exit(0 if same else 1)
assert os.waitpid(child, 0)[1] == 0
assert (attend() == expected).all() and runtime.regions() == 2
"""

SWITCHED_OFF = """
os.environ["SPARQ_CPU_OPENMP"] = "0"
assert not _cpu.use_openmp()
assert (attend() == expected).all() and runtime.regions() == 0
"""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if compiler is None:
        pytest.skip("c++ is not installed")
    library = tmp_path_factory.mktemp("openmp") / "runtime.so"
    source = Path(__file__).with_name("openmp_runtime.cpp")
    command = [compiler, "-std=c++17", "-shared", "-fPIC", "-pthread", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    return library


@pytest.mark.parametrize("what", [USED, SMALLER, FORK, SWITCHED_OFF], ids=["used", "smaller", "fork", "off"])
def test_openmp(runtime: Path, what: str) -> None:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    environment.pop("SPARQ_CPU_OPENMP", None)
    command = [sys.executable, "-c", BEGIN + what, str(runtime)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
