# SPDX-License-Identifier: Apache-2.0
"""Environment variables whose value means nothing are refused by name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EMULATED = """
import numpy as np, sparq_ipu
cache, row = sparq_ipu.KVCache(1, 1, 8, 64, device="emulator", n_tiles=2), np.ones((1, 1, 1, 8), np.float16)
cache.append(row, row)
sparq_ipu.dense_attention(row[:, :, 0], cache)
"""
ON_CPU = EMULATED.replace('device="emulator", n_tiles=2', 'device="cpu"')
OPENMP = "from sparq_ipu import _cpu; _cpu.use_openmp()"
POPART = "from sparq_ipu.poptorch import library; library.load_library()"
KEY = "from sparq_ipu.serve.command import _key, parsed; _key(parsed(['--model', '.']))"
POPC = (
    "import runpy, sys; sys.argv = ['popc', 'x.cpp']\n"
    "runpy.run_path('emulator/popc/popc.py', run_name='__main__')"
)
#: what runs, a value, what is wrong with it
TABLE = {
    "SPARQ_EMULATOR_THREADS": (EMULATED, "x", "must be in [1, 1024], got 'x'"),
    "SPARQ_EMULATOR_FILL": (EMULATED, "x", "must be zero or poison, got 'x'"),
    "SPARQ_EMULATOR_GUARD": (EMULATED, "x", "must be 0 or 1, got 'x'"),
    "SPARQ_EMULATOR_CHECK_WORKERS": (EMULATED, "maybe", "must be 0 or 1, got 'maybe'"),
    "SPARQ_EMULATOR_CHECK_ALIGNMENT": (EMULATED, "2", "must be 0 or 1, got '2'"),
    "SPARQ_EMULATOR_REPORT_READS": (EMULATED, "yes", "must be 0 or 1, got 'yes'"),
    "SPARQ_EMULATOR_WORKER_ORDER": (EMULATED, "-1", "must be a number below 2^64, got '-1'"),
    "POPLAR_ENGINE_OPTIONS": (EMULATED, "x", "expected '{' at character 0, got 'x'"),
    "SPARQ_CODELETS": (EMULATED, "/nowhere", "/nowhere/sparq_codelets.gp, which SPARQ_CODELETS names"),
    "SPARQ_CPU_ISA": (ON_CPU, "sse", "must be one of ['auto', "),
    "OMP_NUM_THREADS": (ON_CPU, "0", "must begin with a number from 1, got '0'"),
    "SPARQ_CPU_OPENMP": (OPENMP, "no", "must be 0 or 1, got 'no'"),
    "SPARQ_IPU_POPART_LIBRARY": (POPART, "/nowhere.so", "tried /nowhere.so"),
    "SPARQ_IPU_API_KEY": (KEY, "two\nlines", "must be a key of ASCII characters"),
    "SPARQ_POPC_EVENTS": (POPC, "maybe", "must be 0 or 1, got 'maybe'"),
}
#: read elsewhere: emulator/tests have a test of theirs, paths of programs that do not start, or not ours
OTHERS = {
    "SPARQ_EMULATOR_IPUS",
    "SPARQ_EMULATOR_CYCLE_COUNTER",
    "SPARQ_POPC",
    "SPARQ_PYTHON",
    "TMPDIR",
    "CXX",
}


@pytest.mark.parametrize("name", TABLE)
def test_a_value_that_means_nothing(name: str) -> None:
    code, value, wrong = TABLE[name]
    if name in ("SPARQ_IPU_API_KEY", "SPARQ_IPU_POPART_LIBRARY"):
        pytest.importorskip("torch")
    if name in ("SPARQ_CPU_ISA", "SPARQ_CPU_OPENMP", "OMP_NUM_THREADS"):
        pytest.importorskip("sparq_ipu._cpu")
    environment = dict(os.environ, **{name: value, "PYTHONPATH": os.pathsep.join(sys.path)})
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT, timeout=120)
    last = done.stderr.splitlines()[-1]
    assert done.returncode and name in last and wrong in last


def test_every_variable_is_in_the_table() -> None:
    call = r"""(?:getenv|isAskedFor|readJSONFromEnv|environ\.get)\(["'](\w+)["']"""
    constant = r"""^(?:KEY_VARIABLE|ISA_VARIABLE|ENVIRONMENT) = ["'](\w+)["']"""
    found = set()
    for folder in ("python", "poplar_ops", "emulator/src", "emulator/popc"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".cpp", ".hpp"):
                text = path.read_text(encoding="utf-8")
                found |= set(re.findall(f"{call}|{constant}", text, re.MULTILINE))
    assert {one or other for one, other in found} == set(TABLE) | OTHERS
