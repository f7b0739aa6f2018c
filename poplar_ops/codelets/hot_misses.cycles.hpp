// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// Sum the lists. For each wave of lists, and for the first wave that is none, 8 for each list, and
// 1 for each wave of all. Each unit costs 1 but the last, which has few rows or none.
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
// Clear two at a time. A worker loads and stores those of its piece that belong to the head, which
// may be the whole piece.
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
// The number (2), compare and branch (2), load, subtract, store.
inline std::uint64_t headRows(double n) { return shared(n, 7 + reloaded); }

} // namespace sparq::cycles
