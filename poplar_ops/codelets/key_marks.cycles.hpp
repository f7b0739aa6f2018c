// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// Sixteen doubtful keys: their largest, wait for it, compare and branch.
inline double sixteenDoubtful() { return sidePass(9, 8, computed) + 3; }
// One key is doubtful: a worker's share of the doubtful keys of all blocks, of which sixteen are
// looked at one by one, 13 each. Of each own block two words; of one where it is, 20.
inline std::uint64_t rankKeys(double n, double nBlocks) {
  return multi(multiplyHigh + n / 64 * (2 + 2 + computed) + 20 +
               share(2 * nBlocks / 16) * sixteenDoubtful() + 16 * 13);
}
inline std::uint64_t largestDoubtful(double nBlocks) {
  return shared(2 * nBlocks / 16, sixteenDoubtful());
}
// One key is doubtful: six counts, 30 to decide. Of each own block two words of both kinds, their
// ones as a float, three stores.
inline std::uint64_t takeKeys(double n) {
  return multi(6 + 6 + 30 + share(n / 64) * (4 + 2 * 4 + toFloat + 3 + computed));
}
inline std::uint64_t anyClash(double n) { return single(n / 2 * pass(1, 1, repeated) + 10); }
// The worker's entries by a product; 32 blocks at a time, then eight, then one: added up, compared,
// 7; where it is, 20; the ones before its own, 10 in each of five halves. An entry is 16, a word of
// marks that it walks over 14.
inline std::uint64_t expandMarks(double nBlocks, double nEntries, double topK) {
  return multi(multiplyHigh + nBlocks / 32 * (pass(16, 16, computed) + 7) +
               3 * (pass(4, 4, computed) + 7) + 7 * (pass(1, 1, computed) + 3) + 20 + 5 * 10 +
               share(nEntries) * 16 + 14 * (2 + 2 * nBlocks / topK * (share(nEntries) - 1)));
}

} // namespace sparq::cycles
