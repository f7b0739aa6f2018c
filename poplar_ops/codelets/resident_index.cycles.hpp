// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "key_index.cycles.hpp"

namespace sparq::cycles {

// The address stays in a register: load, add.
inline std::uint64_t residentCoefficients(double nBlocks, double g, double rank) {
  return blockCoefficients(nBlocks, g, rank, 2);
}
// The address stays in a register: load, add.
inline std::uint64_t residentScores(double nBlocks, double g, double rank, unsigned bits) {
  return indexScores(nBlocks, g, rank, bits, 2);
}
// Pairs of heads; of an odd number the last head twice.
inline double headPairs(unsigned g) { return (g + 1) / 2; }
// Two heads side by side, two components a pass. Each component first takes an address (2),
// parameters, two loads, widen, multiply, magnitude, maximum, multiply, add, store; then load,
// multiply, round by two additions, store. Workers with one pair less lend words: four for each
// component's source and destination, two for each word.
// are and go, of each word two.
inline std::uint64_t groupCoefficients(unsigned nBlocks, unsigned g, unsigned rank,
                                       unsigned nLent) {
  const double second = (sidePass(2 * 3, 2 * 2, counted) + spilled(4)) / 2,
               first = sidePass(2 * 6, 2 * (2 + 3 + 1), computed) / 2,
               ofPair = rank * (first + second) + 2 * (2 * floatDivide + 9);
  const unsigned n = nBlocks * ((g + 1) / 2), others = nWorkers - n % nWorkers;
  const double components = (rank + others - 1) / others,
               lent = nLent == 0 ? 0 : components * (4 + computed + nLent * (2 + counted));
  return multi(std::max(share(n) * ofPair, n / nWorkers * ofPair + lent));
}
// Sums of the products of two codes and two coefficients: for each component two loads and an outer
// product, four a pass.
inline double addProducts(unsigned rank) {
  return rank / 4 * sidePass(4, 4 * 2, repeated) + rank % 4 * pass(1, 2, repeated);
}
// A piece of a component: its place, an address, load (with 2 bits a shift), OR, shift, OR; two
// stores, a load and four stores around masks, differences and conversions, two a pass. For each
// pair of heads and of codes read their sums, two at a time; for each head a scale, three of
// arithmetic, three loads, two stores, two addresses.
inline std::uint64_t groupScores(double nPieces, unsigned g, unsigned rank, unsigned bits = 4) {
  const unsigned shift = bits == 2; // to the piece
  const double codes = rank / 2 * sidePass(2 * 8, 2 * (3 + shift + 3 + 7), counted) +
                       rank % 2 * pass(8, 13 + shift, counted),
               sums = addProducts(rank) + sidePass(2 * (1 + 4), 2 * (3 + 2 + 2), computed);
  return shared(nPieces, 10 + codes + headPairs(g) * 4 * sums);
}
// Load, store; two addresses for a component.
inline std::uint64_t storeRecords(double d, double nWords) {
  return multi(12 + share(d) * (nWords * (2 + counted) + 6 + computed));
}
inline std::uint64_t nextBlock() { return single(3); }
// Add, minimum (2), add, store.
inline std::uint64_t blockOffsets(double n) { return shared(n, 5 + reloaded); }

} // namespace sparq::cycles
