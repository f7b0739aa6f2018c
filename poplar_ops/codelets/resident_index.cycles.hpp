// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "key_index.cycles.hpp"

namespace sparq {
namespace cycles {

// The address from the number of the component: load, multiply, add. And once that, and a store.
inline std::uint64_t residentCoefficients(double nBlocks, double g, double rank) {
  return blockCoefficients(nBlocks, g, rank, 3) + multi(share(rank) * (4 + reloaded)) - multi(0);
}
// The address is kept: load, add.
inline std::uint64_t residentScores(double nBlocks, double g, double rank, unsigned bits) {
  return indexScores(nBlocks, g, rank, bits, 2);
}
// Of two heads at once, of an odd number the last alone. Of each component first address (3), parameters, widen, and
// of each head load, multiply, magnitude, maximum, add, store; then of each head, beside a load and two stores,
// multiply, round by two additions, add, copy, narrow.
inline std::uint64_t groupCoefficients(double nBlocks, unsigned g, double rank) {
  const auto ofHeads = [&](double n) {
    return rank * (pass(1 + 4 * n, 4 + 2 * n, counted) + pass(6 * n, 3 * n, counted)) +
           n * (2 * floatDivide + 14);
  };
  return multi(share(nBlocks * (g / 2)) * ofHeads(2) + share(nBlocks * (g % 2)) * ofHeads(1) +
               share(rank) * (4 + reloaded));
}
// Two sums: of two components two loads and a product each, a sum, widened twice, two additions; of one the
// same without the sum. Four components to a pass.
inline double twoSums(unsigned rank) {
  const double turn = spilled(4 + 3); // of two components, or one: the sums are all registers
  return rank / 4 * (sidePass(2 * 2 * (2 + 1 + 2 + 2), 2 * 2 * 4, repeated) + 2 * turn) +
         rank % 4 * (sidePass(2 * 5, 2 * 2, repeated) + turn);
}
// A piece of a component: its place, an address, load, shift (of 2 bits twice), OR twice; two stores, a load and
// two stores around masks, differences and a product. Of each head its eight sums, of four of these four numbers
// loaded, four stored, two addresses.
inline std::uint64_t groupScores(double nBlocks, double g, unsigned rank, unsigned bits) {
  return shared(nBlocks * 8, 10 + rank * pass(5, 3 + 3 + 5 + (bits == 2), counted) +
                                 g * (twoSums(rank) + 2 * (4 + 4 + 2) + 6));
}
// Load, store; two addresses of a component.
inline std::uint64_t storeRecords(double d, double nWords) {
  return multi(12 + share(d) * (nWords * (2 + counted) + 6 + computed));
}
inline std::uint64_t nextBlock() { return single(3); }
// Add, minimum (2), add, store.
inline std::uint64_t blockOffsets(double n) { return shared(n, 5 + reloaded); }

} // namespace cycles
} // namespace sparq
