# SPDX-License-Identifier: Apache-2.0
"""Sizes that can not be, asked of the buffers themselves: a cache of such sizes has other reasons to fail."""

from __future__ import annotations

import subprocess
from pathlib import Path

import builds
import pytest

CPU = Path(__file__).resolve().parents[2] / "poplar_ops" / "cpu"
PROGRAM = """
#include "buffer.hpp"
#include <cstdint>
#include <new>

template <class F> bool refuses(F f) {
  try {
    f();
  } catch (const std::bad_alloc &) {
    return true;
  }
  return false;
}

int main() {
  using namespace sparq::cpu;
  constexpr std::size_t half = std::size_t(1) << 32;
  if (product({half, half - 1}) != (half - 1) << 32)
    return 1;
  if (!refuses([] { product({half, half}); })) // 0, without its highest bit
    return 2;
  if (!refuses([] { Buffer whole(SIZE_MAX); })) // 0, when rounded up to whole pages
    return 3;
  return 0;
}
"""


def test_sizes_that_overflow_are_refused(tmp_path: Path) -> None:
    compiler = builds.compiler()
    if not compiler:
        pytest.skip("no C++ compiler")
    source, program = tmp_path / "program.cpp", tmp_path / "program"
    source.write_text(PROGRAM, encoding="utf-8")
    command = [compiler, "-std=c++17", "-I", CPU, source, CPU / "buffer.cpp", "-o", program]
    subprocess.run([str(part) for part in command], check=True)
    assert subprocess.run([str(program)]).returncode == 0
