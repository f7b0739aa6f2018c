# SPDX-License-Identifier: Apache-2.0
"""Memory is asked for before it is read, and the compiler leaves that in. Buffers refuse sizes that can not
be: they are asked themselves, for a cache of such sizes has other reasons to fail."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import builds
import pytest

CPU = Path(__file__).resolve().parents[2] / "poplar_ops" / "cpu"
# A function without any other effect, in a loop with others: GCC drops its calls, if nothing tells it of the
# effect.
SOURCE = """
#include "fetch.hpp"
struct Lines {
  const unsigned char *const *rows;
  unsigned n;
  __attribute__((noinline)) void visit(unsigned i) const {
    if (i < n)
      ASK(rows[i]);
  }
};
void work(Lines lines, float *to) {
  for (unsigned i = 0; i < 64; ++i) {
    to[i] += 1;
    lines.visit(i);
  }
}
"""


def compiled(output: Path, text: str, *words: object) -> Path:
    source = output.with_suffix(".cpp")
    source.write_text(text, encoding="utf-8")
    command = [builds.compiler(), "-std=c++17", f"-I{CPU}", source, *words, "-o", output]
    subprocess.run([str(word) for word in command], check=True)
    return output


@pytest.mark.skipif(builds.compiler() is None, reason="needs a C++ compiler")
@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="reads x86 assembly")
@pytest.mark.parametrize("level, instruction", [(1, "prefetcht0"), (2, "prefetcht1")])
def test_what_is_asked_for_is_not_dropped(tmp_path: Path, level: int, instruction: str) -> None:
    """The loop still calls the function, or has its prefetch."""
    source = f"#define ASK sparq::fetchLine<{level}>\n{SOURCE}"
    text = compiled(tmp_path / "asked.s", source, "-O3", "-S").read_text()
    assert instruction in text
    work = text[re.search(r"^_Z4work\w+:", text, re.MULTILINE).start() :]  # type: ignore[union-attr]
    body = work[: work.index(".cfi_endproc")]
    assert re.search(r"visit|prefetch", body)


def test_every_kernel_asks_in_that_way() -> None:
    """Another prefetch may be dropped: GCC 12 did that to the key index's, whose calls then took up to 1.4
    times as long."""
    others = [
        str(path.relative_to(CPU))
        for path in sorted(CPU.rglob("*.[ch]pp"))
        if path.name != "fetch.hpp" and re.search(r"__builtin_prefetch|_mm_prefetch", path.read_text())
    ]
    assert others == []
    assert "__builtin_prefetch" in (CPU / "fetch.hpp").read_text()


PROGRAM = """
#include "buffer.hpp"
#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

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
  // Those of a round keep what is written into them while others come and go.
  struct Held {
    Buffer buffer;
    std::size_t bytes;
    unsigned char round;
  };
  std::vector<Held> held;
  for (unsigned char round = 1; round < 6; ++round) {
    for (std::size_t bytes : {64u, 100u, 1u << 17, 200001u, (2u << 20) - 1, 2u << 20, 3u << 20}) {
      Buffer one(bytes), gone(bytes);
      for (const Buffer *each : {&one, &gone}) {
        unsigned char *const start = each->as<unsigned char>();
        if (reinterpret_cast<std::uintptr_t>(start) % 64)
          return 4;
        if (std::any_of(start, start + bytes, [](unsigned char x) { return x != 0; }))
          return 5;
        std::fill(start, start + bytes, each == &one ? round : 99);
      }
      held.push_back({std::move(one), bytes, round});
    }
    for (const Held &each : held) {
      const unsigned char *const start = each.buffer.as<unsigned char>();
      if (std::any_of(start, start + each.bytes, [&](unsigned char x) { return x != each.round; }))
        return 6;
    }
    if (round == 3)
      held.erase(held.begin(), held.end());
  }
  return 0;
}
"""


@pytest.mark.skipif(builds.compiler() is None, reason="needs a C++ compiler")
def test_memory_is_zeros_and_overflow_is_refused(tmp_path: Path) -> None:
    program = compiled(tmp_path / "program", PROGRAM, CPU / "buffer.cpp")
    assert subprocess.run([str(program)]).returncode == 0
