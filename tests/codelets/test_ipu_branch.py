# SPDX-License-Identifier: Apache-2.0
"""What an IPU's compiler sees in the codelets, tried with Clang for this machine: the branches on the target,
which are vectors of __fp16 converted by the compiler, and numbers chosen and masked by builtins (which
stand-ins take the place of); and the pragma that keeps products and sums apart."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
CODELETS = ROOT / "poplar_ops" / "codelets"
HEADERS = [f"-I{ROOT / 'poplar_ops'}", f"-I{ROOT / 'emulator' / 'include'}"]
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
    alignas(8) float to[sizeof(V) / sizeof(float)];
    sparq::store(to, sparq::load<V>(from + i));
    std::fwrite(to, sizeof(to), 1, stdout);
  }
}
int main() {
  alignas(16) static unsigned short bits[65536];
  for (unsigned i = 0; i != 65536; ++i)
    bits[i] = static_cast<unsigned short>(i);
  alignas(8) half halves[8];
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


#: what the builtins of an IPU's compiler do, one number at a time
BUILTINS = """
#pragma once
#include <cstring>
typedef float float2 __attribute__((vector_size(8)));
namespace stand_in {
template <class F> float2 both(float2 a, float2 b, F f) { return float2{f(a[0], b[0]), f(a[1], b[1])}; }
inline unsigned bits(float x) { unsigned u; std::memcpy(&u, &x, 4); return u; }
inline float number(unsigned u) { float x; std::memcpy(&x, &u, 4); return x; }
}
#define STAND_IN(name, expression) \\
  inline float name(float a, float b) { return expression; } \\
  inline float2 name(float2 x, float2 y) { \\
    return stand_in::both(x, y, [](float a, float b) -> float { return expression; }); \\
  }
STAND_IN(__builtin_ipu_max, a > b ? a : b)
STAND_IN(__builtin_ipu_min, a < b ? a : b)
STAND_IN(__builtin_ipu_and, stand_in::number(stand_in::bits(a) & stand_in::bits(b)))
STAND_IN(__builtin_ipu_cmpge, stand_in::number(a >= b ? ~0u : 0u))
STAND_IN(__builtin_ipu_cmpgt, stand_in::number(a > b ? ~0u : 0u))
STAND_IN(__builtin_ipu_cmple, stand_in::number(a <= b ? ~0u : 0u))
namespace stand_in {
static float2 accumulators[4] = {{1, 2}, {3, 4}, {5, 6}, {7, 8}}; // what was in them before
}
inline void __builtin_ipu_f32v2aop(float2 x, float2 y, int) {
  for (int i = 0; i != 2; ++i)
    stand_in::accumulators[i] += x * y[i];
}
inline float2 __builtin_ipu_f32v2gina(float2 next, int) {
  const float2 first = stand_in::accumulators[0];
  for (int i = 0; i != 3; ++i)
    stand_in::accumulators[i] = stand_in::accumulators[i + 1];
  stand_in::accumulators[3] = next;
  return first;
}
"""
#: every function that has a branch on the target, for V; and narrowing, whose host branch the emulator has
FUNCTIONS = """
#include <cstdio>
#ifdef __IPU__
typedef __fp16 half;
#else
#include <poplar/HalfFloat.hpp>
#endif
#include "arith/arith.hpp"
#include "loads.hpp"
typedef float Eight __attribute__((vector_size(32)));
typedef float Two __attribute__((vector_size(8)));
typedef unsigned EightBits __attribute__((vector_size(32)));
typedef unsigned TwoBits __attribute__((vector_size(8)));
namespace sparq {
template <> struct BitsOf<Eight> { using type = EightBits; };
template <> struct BitsOf<Two> { using type = TwoBits; };
}
template <class V> static void put(const V &v) { std::fwrite(&v, sizeof(v), 1, stdout); }
template <class V> static void all(const V &x, const V &y) {
  put(sparq::larger(x, y)), put(sparq::smaller(x, y)), put(sparq::withoutSign(x)), put(sparq::flush(x));
  put(sparq::zeroBelow(x, 0.25f, y)), put(sparq::zeroAbove(x, 0.25f, y)), put(sparq::zeroUpTo(x, 0.25f, y));
  put(sparq::softmaxWeight(x - sparq::withoutSign(x) * 2.0f));
}
int main() {
  unsigned state = 1;
  const auto number = [&] { // also of few values, so that there are equal ones
    state = state * 1664525u + 1013904223u;
    const float x = static_cast<float>(static_cast<int>(state >> 8) - (1 << 23)) * 0x1p-17f;
    return state & 0x3000u ? x : static_cast<float>(static_cast<int>(x)) * 0.25f;
  };
  for (unsigned i = 0; i != 20000; ++i) {
    Eight x, y;
    for (unsigned j = 0; j != 8; ++j)
      x[j] = number(), y[j] = number();
    all(x, y);
    all(Two{x[0], x[1]}, Two{y[0], y[1]});
    all(x[0], y[0]);
    alignas(8) half halves[8];
    sparq::store(halves, x * 1000.0f);
    put(halves);
  }
}
"""


#: all codes with the largest coefficients, and sums of an odd number of components
PRODUCTS = """
#ifdef __IPU__
typedef __fp16 half;
#endif
#include "code_products.hpp"
#include <cstdio>
int main() {
  constexpr unsigned rank = 7;
  unsigned state = 1;
  sparq::OuterSums sums;
  for (unsigned i = 0; i != 2000; ++i) {
    alignas(8) float codes[rank * 8], coefficients[rank * 2];
    for (unsigned j = 0; j != rank; ++j) {
      state = state * 1664525u + 1013904223u;
      sparq::expandCodes<1>({i < 256 ? i * 0x01010101u : state}, codes + j * 8);
      for (unsigned h = 0; h != 2; ++h)
        coefficients[j * 2 + h] = state >> h & 0x30000u ? 127.0f : -127.0f;
    }
    std::fwrite(codes, sizeof(codes), 1, stdout);
    for (unsigned two = 0; two != 8; two += 2) {
      sparq::addProducts(sums, codes + two, coefficients, rank);
      const sparq::Pair of[2] = {sums.next(), sums.next()};
      std::fwrite(of, sizeof(of), 1, stdout);
    }
  }
}
"""


def outputs_of_branches(text: str, where: Path) -> list[bytes]:
    """What a program says as it is, and as an IPU's compiler sees it."""
    source = where / "functions.cpp"
    source.write_text(text)
    (where / "ipu_builtins.h").write_text(BUILTINS)
    options = ["-std=c++17", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-psabi"]
    if platform.machine() == "x86_64":
        options.append("-mf16c")
    headers = [f"-I{where}", f"-I{CODELETS}", *HEADERS]
    outputs = []
    # A half of an IPU can be returned, unlike an __fp16.
    for branch in ([], ["-D__IPU__=1", "-Xclang", "-fallow-half-arguments-and-returns"]):
        binary = where / f"functions{len(branch)}"
        subprocess.run([clang(), *options, *branch, *headers, str(source), "-o", str(binary)], check=True)
        outputs.append(subprocess.run([str(binary)], capture_output=True, check=True).stdout)
    return outputs


def test_the_branches_for_an_ipu_give_the_same_bits(tmp_path: Path) -> None:
    outputs = outputs_of_branches(FUNCTIONS, tmp_path)
    assert len(outputs[0]) == 20000 * (8 * 4 * (8 + 2 + 1) + 16)
    assert outputs[0] == outputs[1]


def test_products_of_codes_are_the_same_from_accumulators(tmp_path: Path) -> None:
    outputs = outputs_of_branches(PRODUCTS, tmp_path)
    assert len(outputs[0]) == 2000 * (7 * 32 + 4 * 16)
    assert outputs[0] == outputs[1]


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
    headers = [f"-I{tmp_path}", f"-I{CODELETS}", *HEADERS]
    options = ["-std=c++17", "-O3", "-mavx2", "-mfma", "-ffp-contract=on", "-S"]
    subprocess.run([clang(), *options, *headers, str(source), "-o", str(assembly)], check=True)
    assert ("vfmadd" in assembly.read_text()) == (not pragma)
