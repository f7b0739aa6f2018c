// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq {
namespace cycles {

// Eight of the 64 counts a pass.
constexpr double clearCounts = 8 * (8 + counted);
// Shift, mask, the place of the count, load, add, store.
constexpr double countDigit = 6;
// At most three sums of 16 digits, three of 4, three of 1, four at a time; after each its numbers
// added up and compared, 6, and two to go on.
inline double settle(double nPartials) {
  return 3 * nPartials * ((4 + 1) * pass(2, 2, repeated) + pass(1, 1, repeated)) +
         9 * (6 + 2 + computed);
}
// Four keys: of each head four divisions, two additions beside three loads; scale, store, to integers,
// count.
inline std::uint64_t groupKeys(double n, double g) {
  return multi(clearCounts + share(n / 4) * (g * pass(4 * floatDivide + 2, 3, repeated) + 2 + 2 +
                                             2 * pairToInteger + 4 * countDigit + reloaded));
}
// A key: load, count.
inline std::uint64_t givenKeys(double n) {
  return multi(clearCounts + share(n) * (1 + countDigit + computed));
}
// Four keys, of each load, shift, compare, branch; one key in four begins with the prefix, over all
// passes.
inline std::uint64_t keyHistogram(double n, double nPartials) {
  return multi(clearCounts + settle(nPartials) + share(n / 4) * (4 * 4 + computed + countDigit));
}
// Of each part the counts of six workers for two digits: six additions beside six loads.
inline double digitPairSum(double nRows) { return nRows * pass(6, 6, repeated) + 6 + reloaded; }
inline std::uint64_t sumCounts(double nItems, double nRows) {
  return shared(nItems, digitPairSum(nRows));
}
// A key: load, compare, branch; of one in eight the bit, 4. Of a piece what is where, 10, and of both
// words the number of ones as a float and two stores.
inline std::uint64_t markKeys(double n, double nPartials) {
  const double piece = 32 * (3 + computed) + 32 / 8 * 4 + 10 + 2 * (1 + toFloat + 1 + 2);
  return multi(settle(nPartials) + share(n / 32) * piece);
}
// The worker's entries by a product; eight pieces at a time, each loaded and added, then how many are
// selected (minimum, sum, convert, to an integer, compare, branch); at most eight single ones; the ones
// before its own, 10 in each of five halves. An entry is 12, a piece that it walks over 18.
inline std::uint64_t expandMarks(double nPieces, double nEntries, double topK) {
  const double skipped = 3 + toInteger + 2 + computed;
  return multi(multiplyHigh + nPieces / 8 * (8 + skipped) + 8 * (1 + skipped) + 5 * 10 +
               share(nEntries) * (12 + 18 * nPieces / topK));
}

} // namespace cycles
} // namespace sparq
