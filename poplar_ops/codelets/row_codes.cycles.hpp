// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// Of four codes: load, two masks, a shift, two ORs, by a store of two words and a load to the
// numbers' registers; beside that widen, subtract, multiply by pairs, narrow. Of a scale load,
// choose, move.
constexpr double decodeFour = 1 + 2 + 1 + 2 + pairToFloat, decodeScale = 4 + toFloat;
// Of eight components of a key two fours, their scale, four words stored with their addresses.
constexpr double decodeOctet = 2 * decodeFour + decodeScale + 3;
inline std::uint64_t cutCodes(double n, double d, double width) {
  return multi(share(n * d / 8) * (decodeOctet + 4 * 2 + reloaded) +
               share(d / width) *
                   (6 + n * (width / 4 * (decodeFour + decodeScale + 1 + reloaded) + 6)));
}
// Of two positions an octet each, eight words mixed by mask, shift and OR, and stored.
inline std::uint64_t codeColumns(double d) {
  return shared(d / 8, 64 / 2 * (2 * (decodeOctet + 3) + 8 * (3 + 1) + counted));
}
// Of a group four pairs of lanes twice widened, without sign, compared; lanes to one number; the
// scale: to an integer, four of rounding, back, two limits, a division. Of four codes load, widen,
// multiply, round, limit, multiply, store; through integer registers each masked, shifted, joined.
constexpr double roundGroup = 2 * (4 * 4 + computed) + 7 * 2 + toInteger + 4 + toFloat + 2 +
                              floatDivide +
                              4 * (2 * 2 + 2 * 6 + 2 + 2 * pairToInteger + 4 * 3 + 1 + computed);
inline std::uint64_t roundRows(double n, double width) {
  const double twos = static_cast<double>(static_cast<unsigned>((width + 31) / 32));
  return shared(n * twos, 2 * roundGroup + 8);
}

} // namespace sparq::cycles
