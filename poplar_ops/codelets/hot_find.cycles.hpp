// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// Clear the entries. Load a way, keep its number and compare it with both ends. Ways are spread
// evenly over the workers that hold a position near theirs. The search halves the remaining range
// (shift, add, load, compare and branch, add, subtract), then load, compare, branch. Hits, at twice
// an even share and spread in the same way: the place (3), the step (2), two stores, an address, a
// count.
inline std::uint64_t findHot(double topK, double nWays, double nOwners) {
  const auto ofWorker = [](double n) {
    return static_cast<double>(static_cast<unsigned>(n / nWorkers + 1));
  };
  double halvings = 0;
  for (double n = share(topK); n > 1; n /= 2)
    ++halvings;
  return multi(24 + share(topK) * (1 + counted) + nWays * (6 + computed) +
               ofWorker(nWays) * (halvings * (7 + computed) + 3) +
               ofWorker(std::min(nWays, 2 * topK / nOwners)) * 9);
}
// Two stores an entry.
inline std::uint64_t freeWays(double topK) { return multi(share(topK) * (2 + computed) + 14); }
inline std::uint64_t sumFound(double nOwners) { return multi(nOwners * (3 + repeated) + 2); }
// Four owners a pass: address, load, OR for each; the rest one by one.
inline std::uint64_t mergePlaces(double nEntries, unsigned nOwners) {
  return shared(nEntries,
                nOwners / 4 * (4 * 3 + repeated) + nOwners % 4 * (3 + repeated) + 6 + computed);
}
// Load and subtract the counts of the workers before. An entry: two loads, branch, add, two
// addresses, two stores, count.
inline std::uint64_t listMisses(double topK) {
  return multi(14 + (nWorkers - 1) * (2 + repeated) + share(topK) * (9 + counted));
}

} // namespace sparq::cycles
