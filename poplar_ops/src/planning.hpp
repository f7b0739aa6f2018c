// SPDX-License-Identifier: Apache-2.0
//
// What kernels plan with: sizes that all of them share, and how positions are cut into waves.
#pragma once

#include "arith/arith.hpp"
#include "codelets/cycles.hpp"
#include "sparq/kernels.hpp"
#include <algorithm>
#include <cstdint>

namespace sparq {

constexpr unsigned block = blockSize; // positions of a block (docs/exactness.md E3)
// Of a tile's memory: what landing buffers of one wave may take.
constexpr std::uint64_t landingBudget = 64 * 1024;

inline unsigned ceilDiv(std::uint64_t a, std::uint64_t b) {
  return static_cast<unsigned>((a + b - 1) / b);
}
inline unsigned roundUp(unsigned a, unsigned to) { return ceilDiv(a, to) * to; }

// Positions that each part takes of so many: whole blocks.
inline unsigned partLength(unsigned positions, unsigned parts) {
  return ceilDiv(ceilDiv(positions, block), parts) * block;
}

// Entries of a list of selected positions that a part makes. In three tiers at least one for each
// worker: fewer pieces to bring together.
inline unsigned entriesPerPart(const Plan &plan, unsigned topK) {
  const unsigned even = ceilDiv(topK, plan.placement.parts);
  return plan.hot.nPlaces == 0 ? even : std::max(even, cycles::nWorkers);
}

// How many units (blocks, chunks) to take at a time, at most `most`, so that the last wave
// reads few that are not needed.
inline unsigned unitsPerWave(unsigned nUnits, unsigned most) {
  const unsigned fewest = ceilDiv(nUnits, most);
  unsigned best = fewest;
  for (unsigned nWaves = fewest; nWaves <= std::min(2 * fewest, nUnits); ++nWaves)
    if (nWaves * ceilDiv(nUnits, nWaves) < best * ceilDiv(nUnits, best))
      best = nWaves;
  return ceilDiv(nUnits, best);
}

// Scores and keys of the positions of one part.
inline std::uint64_t scoreBytes(const Plan &plan, const Waves &waves) {
  return std::uint64_t(waves.partPositions()) * (plan.shape.groupSize() + 1) * 4;
}

} // namespace sparq
