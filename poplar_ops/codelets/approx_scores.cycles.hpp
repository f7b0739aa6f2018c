// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// Four positions, two components a pass: widen, multiply and add each of four pairs; for each
// component load the keys and the query and advance the address.
inline double scoreFour(double rank, double addressSlots) {
  return rank / 2 * sidePass(4 * 3, 2 * (2 + addressSlots), computed) + 2 + 2 +
         computed; // scale, store
}
inline std::uint64_t approxScores(double n, double g, double rank) {
  return multi(g * share(n / 4) * scoreFour(rank, 1));
}
// The address from the component's number: load, multiply, add.
inline std::uint64_t tailScores(double n, double g, double rank) {
  return multi(g * share(n / 4) * scoreFour(rank, 3));
}
// Load, multiply, add, store; for each chunk its number.
inline std::uint64_t columnOffsets(double nOwn, double rank) {
  return multi(nOwn * (share(rank) * (4 + reloaded) + 6));
}

} // namespace sparq::cycles
