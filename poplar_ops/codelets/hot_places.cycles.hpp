// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq {
namespace cycles {

// Of an owner load, minimum (2), add, two to a pass, in four runs. Of each miss that it takes, an even share: a way
// (load, compare and branch, copies), four to a pass, or by position (two loads, two compares with a branch,
// copies); then two loads and four stores.
inline std::uint64_t dealPlaces(double topK, double nWays, double nOwners,
                                bool byPosition = false) {
  const double mine = static_cast<double>(static_cast<unsigned>((topK + nOwners - 1) / nOwners)),
               way = byPosition ? 7 + computed : 4 + computed / 4;
  return single(20 + nOwners * (4 + repeated / 2) + 40 + mine * (nWays * way + 14 + computed));
}
inline std::uint64_t dealNewest(double nWays) { return single(nWays * (7 + computed) + 16); }
inline std::uint64_t forgetHot(double nWays) { return multi(share(nWays) * (2 + computed) + 4); }

} // namespace cycles
} // namespace sparq
