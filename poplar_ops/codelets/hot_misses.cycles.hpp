// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// Sums of lists; then for each wave of lists, and the first that is none, 8 of each list and 1 of
// each wave of all; of each unit 1, but for the last, which has few or none.
inline std::uint64_t planMisses(double nSlots, double nLists, double nUnits, double nPasses) {
  const double ofPass = nLists * (8 + counted + 1 + computed) + 12,
               units = std::max(1.0, nPasses - 1) * nUnits * (1 + computed);
  return single(nSlots * (2 + counted) + nLists * (6 + computed) + nPasses * ofPass + units + 16);
}
inline std::uint64_t moreMisses(double nLists, double nUnits) {
  return single(nLists * (5 + counted) + nUnits * (3 + computed) + 20);
}
inline std::uint64_t firstMiss(double nBefore, double nLists) {
  return single(nBefore * (2 + repeated) + nLists * (5 + computed) + 14);
}
// Cleared two at a time. Of a worker's piece those that are the head's, which may be all that it
// has: a load and a store.
inline std::uint64_t placeMisses(double nRows, double nOwn) {
  const double pairs = share(nRows / 2);
  return multi(32 + pairs * (1 + computed) + std::min(2 * pairs, nOwn) * (2 + counted));
}
inline std::uint64_t placeFirst(double nRows, double nOwn, double nBefore) {
  return placeMisses(nRows, nOwn) + static_cast<std::uint64_t>(nWorkers * nBefore * (2 + repeated));
}
inline std::uint64_t waveRows(double n, double nSlots) {
  return shared(n, nSlots * (3 + repeated) + 5 + reloaded);
}
// Its number (2), compare and branch (2), load, subtract, store.
inline std::uint64_t headRows(double n) { return shared(n, 7 + reloaded); }

} // namespace sparq::cycles
