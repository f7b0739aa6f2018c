// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

inline std::uint64_t fillLength() { return single(10); }
inline std::uint64_t fillOffsets(double n) { return shared(n, 3 + reloaded); }
// 4 x 4 halves: load eight words; eight masks, shifts and ORs; store eight; 12 addresses.
inline std::uint64_t fillColumns(double d, double n) {
  return shared(d / 4, n / 4 * (8 + 8 * (3 + 1) + 12 + reloaded));
}
// Load and store four halves.
inline std::uint64_t fillTail(double d, double n) {
  return shared(d, n / 4 * (2 + counted) + 6 + reloaded);
}
// A row: widen and add four pairs, beside three memory accesses.
inline std::uint64_t fillSum(double n, double width) {
  return shared(width / 8, n * (pass(4 * 2, 3, counted) + spilled(4 + 2)) + 8 + reloaded);
}
inline std::uint64_t activeToken() { return single(8); }

} // namespace sparq::cycles
