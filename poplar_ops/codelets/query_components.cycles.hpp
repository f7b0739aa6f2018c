// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lanes.cycles.hpp"

namespace sparq::cycles {

// Eight components of a head: widen, mask and add each pair; two loads of the query, four of masks.
// Eight lanes fill all registers, so three of the four pairs are stored and loaded.
inline double magnitudeEight() { return sidePass(4 * 3, 2 + 4, repeated) + spilled(4 + 3); }
// For each pair also a limit and a store.
inline std::uint64_t groupMagnitude(double d, double g) {
  return shared(d / 8, g * magnitudeEight() + 4 + 4 + reloaded);
}
inline std::uint64_t magnitudeSums(double d, double g) {
  return shared(g, d / 8 * magnitudeEight() + treeSum);
}
// Compares each with all: two loads for four of them, and compare, mask, add for each of two pairs.
// Its own four one by one, then the sum and the rank.
inline std::uint64_t componentRanks(double n, double d) {
  return shared(n, d / 4 * pass(2 * 3, 2, repeated) + 44);
}
// Every worker but the first counts the masks before its range, or those behind it: two loads and
// additions a pass. It lists its range: load, branch; for each selected component, spread evenly,
// the index; for each head load, widen, store and two addresses. All workers add up for their
// heads, with 40 for the inverse temperature.
inline std::uint64_t componentList(unsigned d, unsigned g, double rank) {
  double busiest = 0;
  for (unsigned worker = 0; worker != nWorkers; ++worker) {
    const unsigned range = worker == 0 ? 0 : (d + 4) / 5,
                   before = worker == 0 ? 0 : std::min(d, (worker - 1) * range),
                   nHeads = (g + nWorkers - 1 - worker) / nWorkers;
    busiest = std::max(busiest, std::min(before, d - before) / 2 * (4 + repeated) +
                                    range * (2 + counted + rank / d * (2 + (5 + counted) * g)) +
                                    nHeads * (d / 8 * magnitudeEight() + treeSum + 40));
  }
  return multi(multiplyHigh + busiest);
}

} // namespace sparq::cycles
