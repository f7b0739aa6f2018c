// SPDX-License-Identifier: Apache-2.0
//
// Softmax, attention over a list, and the history of its shares.
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// ---- softmax.cpp
// Two maxima of pairs beside two loads; at the end the largest of six numbers and a store.
inline std::uint64_t partialMax(double n, double g, unsigned nPieces) {
  const double ofPiece =
      static_cast<double>((static_cast<std::uint64_t>(n / 4) + nPieces - 1) / nPieces);
  return shared(nPieces * g, ofPiece * pass(2, 2, computed) + 6);
}
// A worker's run. One head takes two pairs a pass, four heads take two of their rows a pass, other
// numbers a pair (or a number) of each row, with an address.
inline double ofRuns(double nPartials) {
  return static_cast<double>((static_cast<unsigned>(share(nPartials)) + 1) / 2);
}
inline std::uint64_t reduceMax(double nPartials, unsigned g) {
  const double twos = ofRuns(nPartials);
  return multi(g == 1   ? (twos + 1) / 2 * sidePass(2, 2, repeated) + 6
               : g == 4 ? twos * sidePass(4, 4, repeated) + 8
                        : (g % 2 == 0 ? g / 2 : g) * (2 * twos * pass(1, 2, repeated) + 4));
}
// Four without a position: two compares, two stores.
inline std::uint64_t softmaxWeights(double nOwn, double nAll, double g) {
  return multi(g * largestOfSix + share(g * nOwn / 4) * (2 * weightPair + computed) +
               share(g * (nAll - nOwn) / 4) * (4 + computed));
}
inline std::uint64_t blockSums(double nBlocks) {
  return shared(nBlocks, 8 * (pass(4, 4, repeated) + spilled(4 + 1)) + treeSum + reloaded);
}
// Four at a time, two in one access.
inline std::uint64_t foldSums(double nBlocks, double g) {
  return shared(g, nBlocks / 4 * pass(4, 2, repeated) + 8);
}

// ---- dense_scores.cpp
inline std::uint64_t denseScores(double n, double g, double d) {
  return shared(n, g * (d / 8 * dotEight() + treeSum + 2 + reloaded)); // scale, store
}
// Add, compare, branch, store.
inline std::uint64_t rowOffsets(double n) { return shared(n, 4 + reloaded); }

// ---- gathered_attention.cpp
// A score is scaled, compared and stored, and its row tested.
inline std::uint64_t rowScores(double n, double g, double d) {
  return shared(n * g, d / 8 * dotEight() + treeSum + 5 + reloaded);
}
// One number at a time, because there are few: load, test, store. Heads without a row of this
// worker cost only the test.
inline std::uint64_t rowWeights(double n, double g) {
  const double rows = share(n * g), heads = std::min(g, rows);
  return multi(heads * largestOfSix + (g - heads) * computed + rows * (weightPair + 4 + reloaded));
}
// Four pairs beside eight loads, because a list may begin at any word.
inline std::uint64_t listSums(double topK, double g) {
  return shared(g, topK / 8 * (pass(4, 8, computed) + spilled(4 + 1)) + topK / 64 * (treeSum + 6) +
                       16);
}

// ---- weighted_values.cpp
// Two rows a pass: widen, multiply and add each pair; for each row the weight, the address, and the
// values in 64 bits, or in 32 where there are two.
inline std::uint64_t weightedValues(double nBlocks, double nRows, double width, double g) {
  const double lanes = width > 12 ? 8 : 2, // as the codelet does
      pairs = lanes / 2, words = lanes == 8 ? 2 : 1,
               row = sidePass(2 * pairs * 3, 2 * (2 + words), computed) / 2 + spilled(pairs + 2);
  return shared(nBlocks * g * (width / lanes), std::min(nRows, 64.0) * row + pairs + 12);
}
// Four pairs for each block; load and store the accumulator.
inline std::uint64_t foldBlocks(double nBlocks, double width, double g) {
  return shared(g * width / 8,
                nBlocks * (pass(4, 4, repeated) + spilled(4 + 1)) + 8 + 4 + reloaded);
}

// ---- combine.cpp
// Eight components: flush, divide, clamp, narrow, two stores, loop.
constexpr double finish = 4 * (flushPair + clampPair + 1) + 8 * floatDivide + 2 + reloaded;
// A block of eight components: four loads and additions, an address.
inline double foldBlock() { return pass(4, 5, repeated) + spilled(4 + 1); }
// The share (divide, flush, minimum, loads); each block's address; the mean (divide, then two
// products and a sum a pair; 1 - alpha).
inline std::uint64_t combine(double nBlocks, double width, double g) {
  return shared(g * width / 8, floatDivide + flushPair + 5 + nBlocks * foldBlock() +
                                   8 * floatDivide + 4 * 3 + 1 + finish);
}
// As combine, without share and mean.
inline std::uint64_t combineList(double nBlocks, double width, double g) {
  return shared(g * width / 8, 5 + nBlocks * foldBlock() + finish);
}

// ---- window_history.cpp
// For each head two loads, an address, divide, multiply, round, convert to an integer, subtract,
// add; then a store.
inline std::uint64_t listShares(double n, double g) {
  return shared(n, g * (3 + floatDivide + 2 + toInteger + 2 + repeated) + 2 + reloaded);
}
// For each KV head load, add, address; then a store.
inline std::uint64_t sumShares(double n, double nKvHeads) {
  return shared(n, nKvHeads * (3 + repeated) + 2 + reloaded);
}
inline std::uint64_t nextStep() { return single(8); }
// A position of the oldest step: two loads, subtract, two stores. The search halves the list
// (shift, add, load, compare and branch, two to go on). Each position of a worker may be selected:
// load, subtract, compare and branch, the share and its store, a load, add, store, two addresses.
inline std::uint64_t addStep(double length, double topK) {
  double halvings = 0;
  for (double n = topK; n >= 1; n /= 2)
    ++halvings;
  const double own = share(length);
  return multi(24 + own * (5 + counted) + halvings * (7 + computed) +
               std::min(own, topK) * (11 + computed));
}
// Two divisions, limits and sums. An entry: compare, branch, multiply, add, two stores.
constexpr double stridedPositions = 2 * integerDivide + 14;
inline std::uint64_t stridedCount() { return single(stridedPositions); }
inline std::uint64_t stridedRows(double n) {
  return multi(stridedPositions + share(n) * (9 + reloaded));
}

} // namespace sparq::cycles
