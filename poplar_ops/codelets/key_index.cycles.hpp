// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// For each component widen, multiply, magnitude, maximum, add, beside an address, two loads and a
// store; then load, multiply, round, convert to an integer, subtract, store. Two divisions and the
// rest happen once.
inline std::uint64_t blockCoefficients(double nBlocks, double g, double rank, double address = 1) {
  const double second = 1 + 1 + 1 + toInteger + 1 + 1 + counted;
  return shared(nBlocks * g,
                rank * (pass(5, address + 3, counted) + second) + 2 * floatDivide + 14);
}
// For each component an address and two loads. For every four pairs of codes (or four codes) shift,
// mask, multiply, add, without the first shift (and the last mask). Sums of 4 or 2 bits are taken
// apart every 16 or 64 components: four words, 6 each. Each score becomes a float: convert; two
// scores take three of arithmetic and a store. A piece has eight positions, or four with codes of 8
// bits.
inline std::uint64_t indexScores(double nBlocks, double g, double rank, unsigned bits,
                                 double address = 1) {
  const unsigned together = bits == 4 ? 16 : 64;
  const double turns = static_cast<double>((static_cast<unsigned>(rank) + together - 1) / together),
               word = bits == 8
                          ? rank * (address + 2 + 4 * 4 - 2 + repeated)
                          : rank * (address + 2 + 4 * 4 - (bits == 4) + repeated) + turns * 4 * 6;
  const double pieces = bits == 8 ? 16 : 8, positions = bits == 8 ? 4 : 8;
  return shared(nBlocks * pieces, 10 + g * (word + positions * (toFloat + 1 + 4 / 2.0)));
}

} // namespace sparq::cycles
