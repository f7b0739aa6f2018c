// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

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

} // namespace sparq::cycles
