// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// A worker compares each of its ways with every other: load, compare, add. Then its own key, its
// place and the store.
inline std::uint64_t rankWays(double nWays) {
  return multi(14 + share(nWays) * (nWays * (3 + counted) + 10 + computed));
}
// For each owner load, minimum (2), add, two a pass, in four runs. For each miss that it takes, an
// even share of all: three loads, four stores.
inline std::uint64_t dealPlaces(double topK, double nOwners) {
  const double mine = static_cast<double>(static_cast<unsigned>((topK + nOwners - 1) / nOwners));
  return single(20 + nOwners * (4 + repeated / 2) + 40 + mine * (15 + computed));
}
// For each way load, compare and branch, copies, four a pass.
inline std::uint64_t dealNewest(double nWays) { return single(nWays * (5 + computed / 4) + 16); }
inline std::uint64_t forgetHot(double nWays) { return multi(share(nWays) * (2 + computed) + 4); }

} // namespace sparq::cycles
