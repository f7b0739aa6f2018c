// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// A worker compares each of its ways with every other: load, compare, add. Then its own key, its
// place and the store.
inline std::uint64_t rankWays(double nWays) {
  return multi(14 + share(nWays) * (nWays * (3 + counted) + 10 + computed));
}
// Of an owner load, minimum (2), add, two to a pass, in four runs. Of each miss that it takes, an
// even share: three loads and four stores.
inline std::uint64_t dealPlaces(double topK, double nOwners) {
  const double mine = static_cast<double>(static_cast<unsigned>((topK + nOwners - 1) / nOwners));
  return single(20 + nOwners * (4 + repeated / 2) + 40 + mine * (15 + computed));
}
// Of a way load, compare and branch, copies, four to a pass.
inline std::uint64_t dealNewest(double nWays) { return single(nWays * (5 + computed / 4) + 16); }
inline std::uint64_t forgetHot(double nWays) { return multi(share(nWays) * (2 + computed) + 4); }

} // namespace sparq::cycles
