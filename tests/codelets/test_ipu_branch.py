# SPDX-License-Identifier: Apache-2.0
"""The one branch on the target in the codelets, as an IPU's compiler sees it: vectors of __fp16, widened by
the compiler. Clang has that type on other targets too, so the branch is compiled and run here."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

CODELETS = Path(__file__).resolve().parents[2] / "poplar_ops" / "codelets"
PROGRAM = """
#include <cstdio>
typedef __fp16 half;
#define __IPU__ 1
#include "loads.hpp"
typedef float Eight __attribute__((vector_size(32)));
typedef float Four __attribute__((vector_size(16)));
typedef float Two __attribute__((vector_size(8)));
template <class V> static void widen(const half *from, unsigned n) {
  for (unsigned i = 0; i != n; i += sizeof(V) / sizeof(float)) {
    float to[sizeof(V) / sizeof(float)];
    sparq::store(to, sparq::load<V>(from + i));
    std::fwrite(to, sizeof(to), 1, stdout);
  }
}
int main() {
  alignas(16) static unsigned short bits[65536];
  for (unsigned i = 0; i != 65536; ++i)
    bits[i] = static_cast<unsigned short>(i);
  half halves[8];
  for (unsigned i = 0; i != 65536; i += 8) {
    __builtin_memcpy(halves, bits + i, sizeof(halves));
    widen<Eight>(halves, 8);
    widen<Four>(halves, 8);
    widen<Two>(halves, 8);
  }
}
"""


def test_every_half_widens_exactly(tmp_path: Path) -> None:
    clang = shutil.which("clang++")
    if clang is None:
        pytest.skip("Clang is not installed: the branch for the IPU was not run")
    source, binary = tmp_path / "loads.cpp", tmp_path / "loads"
    source.write_text(PROGRAM)
    options = ["-std=c++17", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-psabi"]
    if platform.machine() == "x86_64":
        options.append("-mf16c")  # else a conversion is a call into a library that may not be there
    subprocess.run([clang, *options, f"-I{CODELETS}", str(source), "-o", str(binary)], check=True)
    output = np.frombuffer(subprocess.run([str(binary)], capture_output=True, check=True).stdout, np.float32)
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    for widened in output.reshape(-1, 3, 8).transpose(1, 0, 2).reshape(3, -1):
        number = ~np.isnan(halves)
        np.testing.assert_array_equal(widened[number].view(np.uint32), halves[number].view(np.uint32))
        assert np.isnan(widened[~number]).all()
