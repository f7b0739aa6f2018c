// SPDX-License-Identifier: Apache-2.0
// Which elements must be held at which step.
#pragma once

#include <sparq_emulator/Counters.hpp>

#include <utility>
#include <vector>

#include "program_impl.hpp"
#include "regions.hpp"

namespace poplar {
namespace core {

// Elements [begin, end) of a variable.
struct Extent {
  VarId var;
  std::size_t begin;
  std::size_t end;
};

/// Unites `extent` with `other` if they touch.
inline bool extend(Extent &extent, const Extent &other) {
  if (extent.var != other.var || other.begin > extent.end || extent.begin > other.end)
    return false;
  extent.begin = std::min(extent.begin, other.begin);
  extent.end = std::max(extent.end, other.end);
  return true;
}
/// Sorts extents and unites those that touch.
void merge(std::vector<Extent> &extents);

// What a compute set does to variables.
struct ComputeSetUse {
  std::vector<Extent> reads;                                   // an InOut is read
  std::vector<Extent> writes;                                  // Outputs
  std::vector<std::pair<unsigned, std::uint64_t>> temporaries; // bytes by tile
};

/// Fills the figures of `count` that are named after what is live. `always` are the bytes that each
/// tile needs beside variables and temporaries. Programs must have been compiled: they are taken to
/// be correct.
void countLive(const GraphImpl &graph, ArrayRef<program::Program> programs,
               const std::vector<ComputeSetUse> &computeSets,
               const std::vector<std::uint64_t> &always, sparq::emulator::MemoryCount &count);

} // namespace core
} // namespace poplar
