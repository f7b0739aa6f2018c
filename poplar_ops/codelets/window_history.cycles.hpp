// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// For each head two loads, an address, divide, multiply, round, convert to an integer, subtract,
// add; then a store.
inline std::uint64_t listShares(double n, double g) {
  return shared(n, g * (3 + floatDivide + 2 + toInteger + 2 + repeated) + 2 + reloaded);
}
// For each KV head load, add, address; then a store.
inline std::uint64_t sumShares(double n, double nKvHeads) {
  return shared(n, nKvHeads * (3 + repeated) + 2 + reloaded);
}
inline std::uint64_t nextStep() { return single(8); }
// A position of the oldest step: two loads, subtract, two stores. The search halves the list
// (shift, add, load, compare and branch, two to go on). Each position of a worker may be selected:
// load, subtract, compare and branch, the share and its store, a load, add, store, two addresses.
inline std::uint64_t addStep(double length, double topK) {
  double halvings = 0;
  for (double n = topK; n >= 1; n /= 2)
    ++halvings;
  const double own = share(length);
  return multi(24 + own * (5 + counted) + halvings * (7 + computed) +
               std::min(own, topK) * (11 + computed));
}
// Two divisions, limits and sums. An entry: compare, branch, multiply, add, two stores.
constexpr double stridedPositions = 2 * integerDivide + 14;
inline std::uint64_t stridedCount() { return single(stridedPositions); }
inline std::uint64_t stridedRows(double n) {
  return multi(stridedPositions + share(n) * (9 + reloaded));
}

} // namespace sparq::cycles
