// SPDX-License-Identifier: Apache-2.0
//
// Selection of positions.
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// ---- key_topk.cpp
// Eight of the 64 counts a pass.
constexpr double clearCounts = 8 * (8 + counted);
// Subtract, shift, the count's place, load, add, store.
constexpr double countDigit = 6;
// At most three sums of 16 digits, three of 4 and three of 1. After each, add up and compare its
// numbers, 6, and two to go on. Then the number of keys in the bin.
constexpr double settle =
    3 * (8 + 8 + computed + 2 + 2 + computed) + 4 * 2 + 9 * (6 + 2 + computed);
// Four keys: for each head four divisions and two additions beside three loads; scale, two limits
// for each pair, store, convert to integers, count.
inline std::uint64_t groupKeys(double n, double g) {
  return multi(clearCounts + share(n / 4) * (g * pass(4 * floatDivide + 2, 3, repeated) + 2 + 4 +
                                             2 + 2 * pairToInteger + 4 * countDigit + computed));
}
// Eight keys: test whether they are wide, find their largest, wait for it, compare and branch. The
// share `density` of the keys is selected, and some more equal the bin; their eights are tested key
// by key.
inline double eightKeys(double density, double each) {
  return 2 + pass(5, 4, computed) + 3 + std::min(1.0, 8 * 1.5 * density) * 8 * each;
}
// For each key load, subtract, shift, compare, branch; a third of the keys count.
inline std::uint64_t keyHistogram(double n, double density) {
  return multi(clearCounts + settle + share(n / 8) * eightKeys(density, 5 + countDigit / 3));
}
// For each part the counts of six workers for two digits: six additions beside six loads.
inline double digitPairSum(double nRows) { return nRows * pass(6, 6, repeated) + 6 + reloaded; }
inline std::uint64_t sumCounts(double nItems, double nRows) {
  return shared(nItems, digitPairSum(nRows));
}
// For each item a worker's rows: two sums of halves, two stores, three addresses.
inline std::uint64_t sumRows(double nItems, double nRows) {
  return multi(nItems * (share(nRows) * pass(6, 6, repeated) + 7 + counted));
}
// For each key load, compare, branch; for one in eight its bit, 4. For each block the positions,
// 20, two words of each kind and two doubtful keys.
inline std::uint64_t markKeys(double n, double density) {
  return multi(settle + share(n / 64) * (8 * eightKeys(density, 3 + 4.0 / 8) + 20 + 4 * 2 + 2 * 4));
}

// ---- key_marks.cpp
// Sixteen doubtful keys: find their largest, wait for it, compare and branch.
inline double sixteenDoubtful() { return sidePass(9, 8, computed) + 3; }
// One key is doubtful: a worker's share of the doubtful keys of all blocks, of which sixteen are
// tested one by one, 13 each. Two words for each own block; 20 for the block that contains the key.
inline std::uint64_t rankKeys(double n, double nBlocks) {
  return multi(multiplyHigh + n / 64 * (2 + 2 + computed) + 20 +
               share(2 * nBlocks / 16) * sixteenDoubtful() + 16 * 13);
}
inline std::uint64_t largestDoubtful(double nBlocks) {
  return shared(2 * nBlocks / 16, sixteenDoubtful());
}
// One key is doubtful: six counts, and 30 to decide. For each own block load two words of both
// kinds, convert their count to a float, three stores.
inline std::uint64_t takeKeys(double n) {
  return multi(6 + 6 + 30 + share(n / 64) * (4 + 2 * 4 + toFloat + 3 + computed));
}
inline std::uint64_t anyClash(double n) { return single(n / 2 * pass(1, 1, repeated) + 10); }
// Find the worker's entries by a product; then 32 blocks at a time, then eight, then one: add up
// and compare, 7; 20 at the right one; 10 in each of five halves for the entries before its own. An
// entry costs 16, a word of marks that it passes 14.
inline std::uint64_t expandMarks(double nBlocks, double nEntries, double topK) {
  return multi(multiplyHigh + nBlocks / 32 * (pass(16, 16, computed) + 7) +
               3 * (pass(4, 4, computed) + 7) + 7 * (pass(1, 1, computed) + 3) + 20 + 5 * 10 +
               share(nEntries) * 16 + 14 * (2 + 2 * nBlocks / topK * (share(nEntries) - 1)));
}

// ---- selected_share.cpp
// A block: two words of marks, 3 each. Each head: eight lanes in memory, cleared, loaded, added up;
// 13 for a selected position.
inline std::uint64_t selectedSums(double nBlocks, double g, double perBlock) {
  return shared(nBlocks, 2 * 3 + g * (4 + 13 * perBlock + 4 + treeSum));
}

} // namespace sparq::cycles
