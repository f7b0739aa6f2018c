// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq {
namespace cycles {

inline std::uint64_t moreMisses(double nSlots, double nGroups) {
  return single(nSlots * (2 + counted) + nGroups * (2 + computed) + 8 + 8 * (2 + computed));
}
inline std::uint64_t mostMiss(double nSlots) { return single(nSlots * (2 + repeated) + 4); }
inline std::uint64_t firstMiss(double nBefore) { return single(nBefore * (2 + repeated) + 2); }
// Cleared two at a time. Of a worker's piece those that are the head's, which may be all that it has: a load and
// a store.
inline std::uint64_t placeMisses(double nRows, double nOwn) {
  const double pairs = share(nRows / 2);
  return multi(32 + pairs * (1 + computed) + std::min(2 * pairs, nOwn) * (2 + counted));
}
inline std::uint64_t waveRows(double n, double nSlots) {
  return shared(n, nSlots * (3 + repeated) + 5 + reloaded);
}
// Its number (2), compare and branch (2), load, subtract, store.
inline std::uint64_t headRows(double n) { return shared(n, 7 + reloaded); }

} // namespace cycles
} // namespace sparq
