// SPDX-License-Identifier: Apache-2.0
//
// Two ways of asking for rows before they are used, each where a processor is quicker with it (see
// TwoWays).
//
// Rows that dense attention reads in order: some KiB ahead, or not at all. SPARQ_CPU_READ_AHEAD
// names the bytes instead; 0 is not at all.
//
// Rows that SparQ attention selected, which are anywhere in memory: into the first cache, or into
// the second, which has room for more lines on their way. SPARQ_CPU_FETCH_LEVEL names the cache, 1
// or 2.
#pragma once

#include "two_ways.hpp"

namespace sparq {
namespace cpu {

class ReadAhead {
public:
  // Throws std::invalid_argument for a value of the variable that is no number in [0, 65536].
  ReadAhead();
  // Bytes, as far as is known now.
  std::size_t bytes() const { return bytesOf(ways.now()); }

  // One run over rows of so many bytes, from here to the end of its life.
  class Run {
  public:
    Run(ReadAhead &ownerIn, std::size_t length) : owner(ownerIn), run(ownerIn.ways, length) {}
    std::size_t bytes() const { return owner.bytesOf(run.way); } // ahead

  private:
    const ReadAhead &owner;
    const TwoWays::Run run;
  };

private:
  std::size_t bytesOf(unsigned way) const { return way == 0 ? distance : 0; }
  std::size_t distance;
  TwoWays ways;
};

class FetchLevel {
public:
  // Throws std::invalid_argument for a value of the variable other than 1 and 2.
  FetchLevel();
  // The cache, as far as is known now.
  unsigned level() const { return ways.now() + 1; }

  // One run over selected rows of so many bytes, from here to the end of its life.
  class Run {
  public:
    Run(FetchLevel &owner, std::size_t length) : run(owner.ways, length) {}
    unsigned level() const { return run.way + 1; }

  private:
    const TwoWays::Run run;
  };

private:
  TwoWays ways;
};

} // namespace cpu
} // namespace sparq
