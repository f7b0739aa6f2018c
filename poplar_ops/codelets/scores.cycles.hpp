// SPDX-License-Identifier: Apache-2.0
//
// Approximate scores: components of the query, and the key index.
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// ---- query_components.cpp
// Eight components of a head: widen, mask and add each pair; two loads of the query, four of masks.
// Eight lanes fill all registers, so three of the four pairs are stored and loaded.
inline double magnitudeEight() { return sidePass(4 * 3, 2 + 4, repeated) + spilled(4 + 3); }
inline std::uint64_t magnitudeSums(double d, double g) {
  return shared(g, d / 8 * magnitudeEight() + treeSum);
}
// Compares each with all: two loads for four of them, and compare, mask, add for each of two pairs.
// Its own four one by one, then the sum and the rank.
inline std::uint64_t componentRanks(double n, double d) {
  return shared(n, d / 4 * pass(2 * 3, 2, repeated) + 44);
}
// Four components of a head: widen, mask and add each pair; a load, and the mask's. At the end a
// limit for each pair, two stores.
inline std::uint64_t pieceMagnitude(double n, double g) {
  return shared(n / 4, g * (sidePass(2 * 3, 2, repeated) + 1) + 2 + 2 + 4 + reloaded);
}
// A worker counts the masks before its range, or those behind it: two loads and additions a pass.
// It lists its range: load, branch; for each selected component, spread evenly, its number and its
// column (3) with four addresses; for each head load, widen, store and two addresses.
inline std::uint64_t listComponents(unsigned d, unsigned g, double rank) {
  double busiest = 0;
  const unsigned range = ((d + nWorkers - 1) / nWorkers + 1) / 2 * 2;
  for (unsigned worker = 0; worker != nWorkers; ++worker) {
    const unsigned before = std::min(d, worker * range);
    busiest = std::max(busiest, std::min(before, d - before) / 2 * (4 + repeated) +
                                    range * (2 + counted + rank / d * (9 + (5 + counted) * g)));
  }
  return multi(multiplyHigh + 4 + busiest);
}
// 40 for the inverse temperature.
inline std::uint64_t headTemperatures(double d, double g) {
  return shared(g, d / 8 * magnitudeEight() + treeSum + 40);
}

// ---- approx_scores.cpp
// Four positions, two components a pass: widen, multiply and add each of four pairs; for each
// component load the keys and the query and advance the address.
inline double scoreFour(double rank, double addressSlots) {
  return rank / 2 * sidePass(4 * 3, 2 * (2 + addressSlots), computed) + 2 + 2 +
         computed; // scale, store
}
inline std::uint64_t approxScores(double n, double g, double rank) {
  return multi(g * share(n / 4) * scoreFour(rank, 1));
}
// The address from the component's number: load, multiply, add.
inline std::uint64_t tailScores(double n, double g, double rank) {
  return multi(g * share(n / 4) * scoreFour(rank, 3));
}
// Load, add, store; for each chunk its number.
inline std::uint64_t columnOffsets(double nOwn, double rank) {
  return multi(nOwn * (share(rank) * (3 + reloaded) + 6));
}

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

// ---- resident_index.cpp
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
