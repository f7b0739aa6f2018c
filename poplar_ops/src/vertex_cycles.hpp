// SPDX-License-Identifier: Apache-2.0
//
// Cycle estimates of the vertices: what each inner loop loads, computes and stores, by the rules of
// cycles.hpp. Where the work depends on the data, an estimate is for a full part, with the selected
// positions spread evenly; ties in top-k are counted as rare.
#pragma once

#include "cycles.hpp"

namespace sparq {
namespace cycles {

// ---- lanes.hpp, arith.hpp
// Softmax weight of a pair: subtract the maximum, three selects, 19 of exp; both t and y to
// integers, subtract, shift and add of each number, and back.
constexpr double weightPair = 1 + 3 * pairSelect + 19 + 2 * pairToInteger + 2 * 3 + pairToFloat;
// Eight lanes to a number, one by one, and its store.
constexpr double treeSum = 16;
// The largest of six: a load and a select of each after the first.
constexpr double largestOfSix = 5 * (1 + scalarSelect);
// Eight products of fp16 added up: four pairs, each widened twice, multiplied, added; eight words loaded.
inline double dotEight() { return pass(4 * 4, 8); }
// Two compares and two branches; half store.
constexpr double flush = 2 * scalarSelect, narrow = 2 * scalarSelect + 1;

// ---- approx_scores.cpp
// Four positions, one component: of two pairs widen, multiply, add; two words of keys, the query, the
// column's address.
inline double approxFour() { return pass(2 * 3, 4); }
inline std::uint64_t approxScores(double n, double g, double rank) {
  return multi(g * share(n / 4) * (rank * approxFour() + 2 + 4 + loopSlots)); // scale, store
}
inline std::uint64_t tailScores(double n, double g, double rank) {
  return multi(g * share(n / 4) * (rank * pass(2 * 3, 6) + 2 + 4 + loopSlots));
}
inline std::uint64_t columnOffsets(double nOwn, double rank) {
  return multi(nOwn * (share(rank) * (4 + loopSlots) + 6));
}

// ---- key_index.cpp
inline std::uint64_t blockCoefficients(double nBlocks, double g, double rank) {
  const double first = 3 + 2 * (toFloat + 2) + 1 + scalarSelect + 1 + toInteger + scalarSelect + 2,
               second = 1 + 1 + 1 + toInteger + 1 + 1;
  return shared(nBlocks * g, integerDivide + 3 + rank * (first + second + 2 * loopSlots) + 20);
}
inline std::uint64_t indexScores(double nBlocks, double g, double rank, unsigned bits) {
  const double word = bits == 4 ? rank * (3 + 4 * 4 - 1 + loopSlots) + (rank + 15) / 16 * 24
                                : rank * (3 + 4 * 4 - 2 + loopSlots);
  const double score = toFloat + 1 + 3 + 2;
  return shared(nBlocks * 2 * bits, integerDivide + 13 + g * (word + 32.0 / bits * score));
}

// ---- query_components.cpp
// Of a pair: widen, to integers, two masked, back, add.
constexpr double magnitudePair = 1 + pairToInteger + 2 + pairToFloat + 1;
inline std::uint64_t groupMagnitude(double d, double g) {
  return shared(d / 8, g * (4 * magnitudePair + loopSlots) + 4 * pairSelect + 8);
}
inline std::uint64_t magnitudeSums(double d, double g) {
  return shared(g, d / 8 * (4 * magnitudePair + loopSlots) + treeSum);
}
inline std::uint64_t componentRanks(double n, double d) {
  return shared(n, d / 4 * (2 * (1 + pairToInteger + 2) + loopSlots) + 44);
}
// A worker but the first counts the masks before its range, or those behind it, and lists its range;
// all sum up for their heads: mask a pair, add, and the inverse temperature.
inline std::uint64_t componentList(unsigned d, unsigned g, double rank) {
  double busiest = 0;
  for (unsigned worker = 0; worker != nWorkers; ++worker) {
    const unsigned range = worker == 0 ? 0 : (d + 4) / 5,
                   before = worker == 0 ? 0 : (worker - 1) * range,
                   nHeads = (g + nWorkers - 1 - worker) / nWorkers;
    const double masks = std::min(before, d - std::min(before, d)) / 2,
                 head = d / 8 * (4 * (magnitudePair + 2) + loopSlots) + treeSum + 40;
    busiest =
        std::max(busiest, masks * (4 + loopSlots) +
                              range * (2 + loopSlots + rank / d * (2 + 5 * g)) + nHeads * head);
  }
  return multi(busiest);
}

// ---- softmax.cpp
inline std::uint64_t partialMax(double n, double g) {
  return multi(g * share(n) * (1 + scalarSelect + loopSlots));
}
inline std::uint64_t reduceMax(double nPartials, unsigned g) {
  if (g == 1)
    return shared(static_cast<std::uint64_t>(nPartials + 1) / 2, pass(pairSelect, unaligned));
  return g % 2 == 0 ? shared(nPartials, g / 2 * pass(pairSelect, unaligned))
                    : shared(nPartials, g * (1 + scalarSelect + loopSlots));
}
inline std::uint64_t softmaxWeights(double nOwn, double nAll, double g) {
  return multi(g * (largestOfSix + share(nOwn / 4) * (2 * weightPair + loopSlots) +
                    share((nAll - nOwn) / 4) * 4 * (3 + loopSlots)));
}
inline std::uint64_t blockSums(double nBlocks) {
  return shared(nBlocks, 8 * pass(4, 4 * unaligned) + treeSum);
}
inline std::uint64_t foldSums(double nBlocks, double g) { return shared(g, nBlocks * pass(1, 1)); }

// ---- key_topk.cpp
constexpr double nDigits = 64;
constexpr double clearCounts = nDigits / 2 * (unaligned + loopSlots);
// At most three sums of 16 digits, three of 4, three of 1, each compared and subtracted.
inline double settle(double nPartials) {
  return 3 * nPartials * (10 * pass(1, unaligned) + pass(1, 1)) + 9 * (scalarSelect + 6);
}
inline std::uint64_t groupKeys(double n, double g) {
  // Four keys: of each head four divisions and two additions; scale; the keys to integers; of each
  // shift, mask, is it one of the part's, count.
  const double head = pass(4 * floatDivide + 2, 2 * unaligned + 1),
               four = 2 + 2 * unaligned + 2 * pairToInteger + 4 * (2 + 2 + 3) + loopSlots;
  return multi(clearCounts + share(n / 4) * (g * head + four));
}
inline std::uint64_t keyHistogram(double n, double nPartials) {
  return multi(clearCounts + settle(nPartials) + share(n) * (5 + loopSlots + 5 / 4.0));
}
inline std::uint64_t sumCounts(double nItems, double nRows) {
  return shared(nItems, nRows * pass(1, unaligned) + 4);
}
inline std::uint64_t markKeys(double n, double nPartials) {
  return multi(settle(nPartials) +
               share(n / 32) * (32 * (7 + loopSlots) + 2 * (1 + toFloat + 2) + 10) +
               n / 32 * (multiplyHigh + 5));
}
inline std::uint64_t expandMarks(double nPieces, double nEntries, double topK) {
  return multi(nPieces / 8 * (8 * unaligned + 12) + 8 * 14 + 5 * 10 +
               share(nEntries) * (12 + (3 * integerDivide + 22) * nPieces / topK));
}
inline std::uint64_t selectedSums(double nBlocks, double g, double perBlock) {
  return shared(nBlocks, 10 + g * (8 + 13 * perBlock + treeSum));
}

// ---- gathered_attention.cpp
inline std::uint64_t rowScores(double n, double g, double d) {
  return shared(n * g, d / 8 * dotEight() + treeSum + integerDivide + 3 + 5 + scalarSelect);
}
inline std::uint64_t rowWeights(double n, double g) {
  return multi(g * (largestOfSix + share(n) * (weightPair + 4 + loopSlots)));
}
inline std::uint64_t listSums(double topK, double g) {
  return shared(g, topK / 8 * pass(4, 4 * unaligned) + topK / 64 * treeSum + 16);
}

// ---- weighted_values.cpp
inline std::uint64_t weightedValues(double nBlocks, double nRows, double width, double g) {
  const double lanes = width > 12 ? 8 : 2, row = lanes == 8 ? pass(4 * 3, 6) : pass(3, 3);
  return shared(nBlocks * g * (width / lanes),
                3 * integerDivide + 16 + std::min(nRows, 64.0) * row);
}
inline std::uint64_t foldBlocks(double nBlocks, double width, double g) {
  return shared(g * width / 8, nBlocks * pass(4, 4 * unaligned) + 20);
}

// ---- combine.cpp
inline std::uint64_t combine(double nBlocks, double width, double g) {
  const double component = flush + 2 * floatDivide + 4 + narrow + halfStore + 3 + loopSlots;
  return shared(g * width / 8, integerDivide + 3 + floatDivide + flush + scalarSelect +
                                   nBlocks * pass(4, 4 * unaligned) + 8 * component);
}
inline std::uint64_t combineDense(double width, double g) {
  return shared(g * width / 8,
                integerDivide + 3 + 8 * (1 + flush + floatDivide + narrow + halfStore + loopSlots));
}

// ---- dense_scores.cpp, waves.cpp
inline std::uint64_t denseScores(double n, double g, double d) {
  return shared(n, g * (d / 8 * dotEight() + treeSum + 4));
}
inline std::uint64_t rowOffsets(double n) {
  return multi(2 * integerDivide + share(n) * (4 + loopSlots));
}
inline std::uint64_t nextWave(double nSlots) { return single(nSlots * (4 + loopSlots) + 6); }

// ---- cache_append.cpp, quantise.cpp
inline std::uint64_t appendOffsets() { return single(8); }
inline std::uint64_t appendTail(double nComponents) {
  return single(nComponents * (2 + halfStore + loopSlots) + 4);
}
inline std::uint64_t appendSum(double width) { return shared(width / 8, pass(8, 20)); }
inline std::uint64_t advanceLength() { return single(10); }
inline std::uint64_t anyFull(double n) { return single(n * (2 + loopSlots)); }
inline std::uint64_t flushOffsets(double d) { return shared(d, integerDivide + 6 + loopSlots); }
inline std::uint64_t chunkFull() { return single(8); }
// The least and largest of eight at a time, then of eight; the step; 64 codes.
constexpr double quantiseBlock = 8 * (4 * (1 + 2 * pairSelect) + loopSlots) + 14 * scalarSelect +
                                 40 + 64 * (2 + 3 + toInteger + 1 + 3 + 2 + loopSlots);
inline std::uint64_t quantiseTail(double d) { return shared(d, quantiseBlock); }

// ---- cache_fill.cpp, quantise.cpp
inline std::uint64_t fillLength() { return single(10); }
inline std::uint64_t fillOffsets(double n) { return shared(n, 3 + loopSlots); }
inline std::uint64_t fillColumns(double d, double n) {
  return shared(d, n * (2 + halfStore + loopSlots));
}
inline std::uint64_t fillTail(double d, double n) {
  return shared(d, n * (2 + halfStore + loopSlots));
}
inline std::uint64_t fillSum(double n, double width) {
  return shared(width / 8, n * pass(4 * 2, 5) + 16);
}
inline std::uint64_t fillIndex(double d, double nBlocks) {
  return shared(d, nBlocks * quantiseBlock);
}
inline std::uint64_t fillTailIndex(double d, double nWords) {
  return shared(d, nWords * (2 + loopSlots) + 64 * (2 + halfStore + loopSlots));
}
inline std::uint64_t activeToken() { return single(8); }

} // namespace cycles
} // namespace sparq
