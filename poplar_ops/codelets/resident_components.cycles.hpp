// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "query_components.cycles.hpp"

namespace sparq::cycles {

// Four components of a head: widen, mask and add each pair; a load, and the mask's. At the end a
// limit for each pair, two stores.
inline std::uint64_t pieceMagnitude(double n, double g) {
  return shared(n / 4, g * (sidePass(2 * 3, 2, repeated) + 1) + 2 + 2 + 4 + reloaded);
}
// As componentList, by all workers: each selected component also has its number and its column (3),
// with two addresses.
inline std::uint64_t listComponents(unsigned d, unsigned g, double rank) {
  double busiest = 0;
  const unsigned range = ((d + nWorkers - 1) / nWorkers + 1) / 2 * 2;
  for (unsigned worker = 0; worker != nWorkers; ++worker) {
    const unsigned before = std::min(d, worker * range);
    busiest = std::max(busiest, std::min(before, d - before) / 2 * (4 + repeated) +
                                    range * (2 + counted + rank / d * (9 + (5 + counted) * g)));
  }
  return multi(multiplyHigh + 4 + busiest);
}
inline std::uint64_t headTemperatures(double d, double g) {
  return shared(g, d / 8 * magnitudeEight() + treeSum + 40);
}

} // namespace sparq::cycles
