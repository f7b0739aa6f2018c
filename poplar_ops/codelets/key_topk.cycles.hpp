// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// Eight of the 64 counts a pass.
constexpr double clearCounts = 8 * (8 + counted);
// Subtract, shift, the place of the count, load, add, store.
constexpr double countDigit = 6;
// At most three sums of 16 digits, three of 4, three of 1, of each partial sum in turn; after each
// its numbers added up and compared, 6, and two to go on. Then how many keys the bin has.
inline double settle(double nPartials) {
  return nPartials *
             (3 * (pass(8, 8, computed) + pass(2, 2, computed)) + 4 * pass(1, 1, repeated)) +
         9 * (6 + 2 + computed);
}
// Four keys: of each head four divisions, two additions beside three loads; scale, two limits of
// each pair, store, to integers, count.
inline std::uint64_t groupKeys(double n, double g) {
  return multi(clearCounts + share(n / 4) * (g * pass(4 * floatDivide + 2, 3, repeated) + 2 + 4 +
                                             2 + 2 * pairToInteger + 4 * countDigit + computed));
}
// Eight keys: whether they are wide, their largest, wait for it, compare and branch. Of the keys a
// share `density` is selected, and some more are as large as the bin: so many of the eights are
// looked at, key by key.
inline double eightKeys(double density, double each) {
  return 2 + pass(5, 4, computed) + 3 + std::min(1.0, 8 * 1.5 * density) * 8 * each;
}
// Of a key load, subtract, shift, compare, branch; a third of them count.
inline std::uint64_t keyHistogram(double n, double nPartials, double density) {
  return multi(clearCounts + settle(nPartials) +
               share(n / 8) * eightKeys(density, 5 + countDigit / 3));
}
// Of each part the counts of six workers for two digits: six additions beside six loads.
inline double digitPairSum(double nRows) { return nRows * pass(6, 6, repeated) + 6 + reloaded; }
inline std::uint64_t sumCounts(double nItems, double nRows) {
  return shared(nItems, digitPairSum(nRows));
}
// Of an item a worker's rows; two sums of halves, two stores, three addresses.
inline std::uint64_t sumRows(double nItems, double nRows) {
  return multi(nItems * (share(nRows) * pass(6, 6, repeated) + 7 + counted));
}
// Of a key load, compare, branch; of one in eight the bit, 4. Of a block what is where, 20, two
// words of each kind and two doubtful keys.
inline std::uint64_t markKeys(double n, double nPartials, double density) {
  return multi(settle(nPartials) +
               share(n / 64) * (8 * eightKeys(density, 3 + 4.0 / 8) + 20 + 4 * 2 + 2 * 4));
}

} // namespace sparq::cycles
