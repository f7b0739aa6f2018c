// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// Four codes: load, two masks, a shift, two ORs; a store of two words and a load move them to the
// float registers, beside widen, subtract, multiply by pairs, narrow. A scale: load, choose, move.
constexpr double decodeFour = 1 + 2 + 1 + 2 + pairToFloat, decodeScale = 4 + toFloat;
// Eight components of a key: two fours, their scale, four words stored with their addresses.
constexpr double decodeOctet = 2 * decodeFour + decodeScale + 3;
inline std::uint64_t cutCodes(double n, double d, double width) {
  return multi(share(n * d / 8) * (decodeOctet + 4 * 2 + reloaded) +
               share(d / width) *
                   (6 + n * (width / 4 * (decodeFour + decodeScale + 1 + reloaded) + 6)));
}
// Two positions, an octet each: mix eight words by mask, shift and OR, and store them.
inline std::uint64_t codeColumns(double d) {
  return shared(d / 8, 64 / 2 * (2 * (decodeOctet + 3) + 8 * (3 + 1) + counted));
}
// A group: widen four pairs of lanes twice, drop the sign, compare; reduce lanes to one number; the
// scale: convert to an integer, four for rounding, convert back, two limits, a division. Four
// codes: load, widen, multiply, round, limit, multiply, store; mask, shift and join each in integer
// registers.
constexpr double roundGroup = 2 * (4 * 4 + computed) + 7 * 2 + toInteger + 4 + toFloat + 2 +
                              floatDivide +
                              4 * (2 * 2 + 2 * 6 + 2 + 2 * pairToInteger + 4 * 3 + 1 + computed);
inline std::uint64_t roundRows(double n, double width) {
  const double twos = static_cast<double>(static_cast<unsigned>((width + 31) / 32));
  return shared(n * twos, 2 * roundGroup + 8);
}

} // namespace sparq::cycles
