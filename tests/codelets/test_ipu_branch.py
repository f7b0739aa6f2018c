# SPDX-License-Identifier: Apache-2.0
"""What an IPU's compiler sees in the codelets, tried with Clang for this machine: the one branch on the
target, vectors of __fp16 widened by the compiler, and the pragma that keeps products and sums apart."""

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


def clang() -> str:
    found = shutil.which("clang++")
    if found is None:
        pytest.skip("Clang is not installed: what is for an IPU's compiler was not tried")
    return found


def test_every_half_widens_exactly(tmp_path: Path) -> None:
    source, binary = tmp_path / "loads.cpp", tmp_path / "loads"
    source.write_text(PROGRAM)
    options = ["-std=c++17", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-psabi"]
    if platform.machine() == "x86_64":
        options.append("-mf16c")  # else a conversion is a call into a library that may not be there
    subprocess.run([clang(), *options, f"-I{CODELETS}", str(source), "-o", str(binary)], check=True)
    output = np.frombuffer(subprocess.run([str(binary)], capture_output=True, check=True).stdout, np.float32)
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    for widened in output.reshape(-1, 3, 8).transpose(1, 0, 2).reshape(3, -1):
        number = ~np.isnan(halves)
        np.testing.assert_array_equal(widened[number].view(np.uint32), halves[number].view(np.uint32))
        assert np.isnan(widened[~number]).all()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="looks for the instructions of x86-64")
@pytest.mark.parametrize("pragma", [True, False])
def test_nothing_is_contracted_even_where_the_flags_allow_it(tmp_path: Path, pragma: bool) -> None:
    text = (CODELETS / "lanes.hpp").read_text()
    assert text.count("#pragma clang fp contract(off)") == 1
    if not pragma:  # negative control
        text = text.replace("#pragma clang fp contract(off)", "")
    (tmp_path / "lanes.hpp").write_text(text)
    source, assembly = tmp_path / "product.cpp", tmp_path / "product.s"
    source.write_text(
        """
        #include "lanes.hpp"
        float scalar(float a, float b, float c) { return a * b + c; }
        sparq::Lanes lanes(sparq::Lanes a) { return sparq::softmaxWeight(a); }
        """
    )
    headers = [f"-I{tmp_path}", f"-I{CODELETS}", f"-I{CODELETS.parent / 'emulator' / 'include'}"]
    options = ["-std=c++17", "-O3", "-mavx2", "-mfma", "-ffp-contract=on", "-S"]
    subprocess.run([clang(), *options, *headers, str(source), "-o", str(assembly)], check=True)
    assert ("vfmadd" in assembly.read_text()) == (not pragma)
