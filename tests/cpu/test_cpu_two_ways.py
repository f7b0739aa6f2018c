# SPDX-License-Identifier: Apache-2.0
"""The quicker of two ways stays. A clock of this test's own says what each run took."""

from __future__ import annotations

import subprocess
from pathlib import Path

import builds
import pytest

CPU = Path(__file__).resolve().parents[2] / "poplar_ops" / "cpu"
PROGRAM = """
#include <chrono>
static long long now = 0; // ns
struct Clock {
  using time_point = std::chrono::time_point<Clock, std::chrono::nanoseconds>;
  static time_point now() { return time_point(std::chrono::nanoseconds(::now)); }
};
#define steady_clock system_clock_of_the_test
namespace std::chrono { using system_clock_of_the_test = Clock; }
#include "two_ways.cpp"
#include "read_ahead.cpp"

using sparq::cpu::FetchLevel;
using sparq::cpu::ReadAhead;
using sparq::cpu::TwoWays;
constexpr unsigned tries = 3;

// The way that is used after runs of these lengths and times, (way 0, way 1) in turn.
unsigned chosen(long long first, long long second, std::size_t length = 1000, int outlier = -1,
                long long its = 100000) {
  TwoWays ways(1000, tries);
  for (unsigned i = 0; i < 2 * tries; ++i) {
    if (ways.now() != 0)
      return 9; // before all is timed
    TwoWays::Run run(ways, length);
    if (length >= 1000 && int(run.way) != __builtin_parity(i))
      return 8; // not in turn
    ::now += int(i) == outlier ? its : run.way == 0 ? first : second;
  }
  TwoWays::Run after(ways, length);
  return after.way == ways.now() ? ways.now() : 7;
}

// Of two threads side by side, one of which takes twice as long.
unsigned chosenByTwo(long long first, long long second, unsigned slow) {
  TwoWays ways(0, 8);
  for (unsigned i = 0; i < 16; ++i) {
    TwoWays::Run run(ways, 1000);
    ::now += (run.way == 0 ? first : second) * (i % 2 == slow ? 2 : 1);
  }
  return ways.now();
}

int main() {
  for (unsigned slow : {0, 1})
    if (chosenByTwo(1000, 900, slow) != 1 || chosenByTwo(900, 1000, slow) != 0)
      return 14;
  if (chosen(1000, 900) != 1)
    return 1;
  if (chosen(1000, 960) != 0) // by less than chance
    return 2;
  if (chosen(900, 1000) != 0)
    return 3;
  for (int outlier : {1, 2 * int(tries) - 1}) { // what ran meanwhile was timed too
    if (chosen(1000, 900, 1000, outlier) != 1)
      return 4;
    if (chosen(900, 1000, 1000, outlier, 100) != 0) // its data were in a cache
      return 13;
  }
  if (chosen(1000, 900, 999) != 0) // too short to say anything
    return 5;
  TwoWays settled(0, tries);
  settled.settle(1);
  for (unsigned i = 0; i < 4 * tries; ++i) {
    TwoWays::Run run(settled, 1000);
    ::now += run.way == 0 ? 1 : 1000;
    if (run.way != 1 || settled.now() != 1)
      return 6;
  }
  ReadAhead ahead;
  FetchLevel fetch;
  for (unsigned i = 0; i < 64; ++i) {
    const ReadAhead::Run read(ahead, 1 << 20);
    const FetchLevel::Run of(fetch, 1 << 20);
    if (i < 16 && read.bytes() != (__builtin_parity(i) ? 0 : 4096))
      return 10;
    if (int(of.level()) != 1 + __builtin_parity(i))
      return 11;
    ::now += of.level() == 2 ? 1000 : 9000;
  }
  return ahead.bytes() == 0 && fetch.level() == 2 ? 0 : 12; // the second ways were quicker
}
"""


@pytest.mark.skipif(builds.compiler() is None, reason="needs a C++ compiler")
def test_the_quicker_way_stays(tmp_path: Path) -> None:
    source, program = tmp_path / "two_ways_test.cpp", tmp_path / "two_ways_test"
    source.write_text(PROGRAM)
    command = [builds.compiler(), "-std=c++17", f"-I{CPU}", str(source), "-o", str(program)]
    subprocess.run([str(word) for word in command], check=True)
    assert subprocess.run([str(program)], check=False).returncode == 0
