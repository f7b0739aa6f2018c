// SPDX-License-Identifier: Apache-2.0
//
// Cycle estimates of the vertices: what each inner loop loads, computes and stores, by the rules of
// cycles.hpp. Where the work depends on the data, an estimate is for a full part, with the selected
// positions spread evenly; ties in top-k are counted as rare.
//
// Widths are multiples of 8, lengths of parts multiples of 64. `arithmetic` is floating point, `main`
// all other instructions; where one waits for the other they are added up.
#pragma once

#include "cycles.hpp"

namespace sparq {
namespace cycles {

// ---- lanes.hpp, arith.hpp
// Softmax weight of a pair: subtract the maximum, compare with the least argument and mask twice, in
// exp compare and mask, 19 of arithmetic, times the power of two. Of that the numbers go through the
// integer registers, each shifted and added to.
constexpr double weightPair = 1 + 3 + 2 + 19 + 1 + pairToInteger + 2 * 2 + pairToFloat;
// Eight lanes to a number: three sums of pairs, one of their halves; its store.
constexpr double treeSum = 4 + 1;
// Six loads, the addresses of five, the last maximum; the others beside the loads.
constexpr double largestOfSix = 6 + 5 + 1;
// Eight products of fp16, added up: of each of four pairs widen twice, multiply, add; two loads of each
// row.
constexpr double dotEight = std::max(4.0 * 4, 2.0 * 2) + loopSlots;
// Of a pair: magnitude, compare, mask. Of a pair: two limits.
constexpr double flushPair = 3, clampPair = 2;

// ---- approx_scores.cpp
// Four positions, two components to a pass: of four pairs widen, multiply, add; of each component the
// keys, the query, the address.
inline double scoreFour(double rank, double addressSlots) {
  return rank / 2 * pass(4 * 3, 2 * (2 + addressSlots)) + 2 + 2 + loopSlots; // scale, store
}
inline std::uint64_t approxScores(double n, double g, double rank) {
  return multi(g * share(n / 4) * scoreFour(rank, 1));
}
// The address from the number of the component: load, multiply, add.
inline std::uint64_t tailScores(double n, double g, double rank) {
  return multi(g * share(n / 4) * scoreFour(rank, 3));
}
// Load, multiply, add, store; of each chunk its number.
inline std::uint64_t columnOffsets(double nOwn, double rank) {
  return multi(nOwn * (share(rank) * (4 + loopSlots) + 6));
}

// ---- key_index.cpp
// Of each component first widen, multiply, magnitude, maximum, add, beside address, two loads, store;
// then load, multiply, round, to an integer, subtract, store. Two divisions and what else is once.
inline std::uint64_t blockCoefficients(double nBlocks, double g, double rank, double address = 1) {
  const double second = 1 + 1 + 1 + toInteger + 1 + 1 + loopSlots;
  return shared(nBlocks * g, rank * (pass(5, address + 3) + second) + 2 * floatDivide + 14);
}
// Of each component address, two loads, and of four pairs of codes (of four codes) shift, mask,
// multiply, add, but for the first shift (and the last mask). Sums of 4 bits are taken apart in turns
// of 16 components: four words, 6 each. Of each score to a float, convert; of two three of arithmetic
// and a store.
inline std::uint64_t indexScores(double nBlocks, double g, double rank, unsigned bits,
                                 double address = 1) {
  const double turns = static_cast<double>(static_cast<unsigned>(rank + 15) / 16),
               word = bits == 4 ? rank * (address + 2 + 4 * 4 - 1 + loopSlots) + turns * 4 * 6
                                : rank * (address + 2 + 4 * 4 - 2 + loopSlots);
  return shared(nBlocks * 2 * bits, 10 + g * (word + 32.0 / bits * (toFloat + 1 + 4 / 2.0)));
}

// ---- resident_index.cpp
// The address from the number of the component: load, multiply, add. And once that, and a store.
inline std::uint64_t residentCoefficients(double nBlocks, double g, double rank) {
  return blockCoefficients(nBlocks, g, rank, 3) + multi(share(rank) * (4 + loopSlots)) - multi(0);
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
    return rank * (pass(1 + 4 * n, 4 + 2 * n) + pass(6 * n, 3 * n)) + n * (2 * floatDivide + 14);
  };
  return multi(share(nBlocks * (g / 2)) * ofHeads(2) + share(nBlocks * (g % 2)) * ofHeads(1) +
               share(rank) * (4 + loopSlots));
}
// Two sums: of two components two loads and a product each, a sum, widened twice, two additions; of one the
// same without the sum. Four components to a pass, three pointers beside the counter.
inline double twoSums(unsigned rank) {
  return rank / 4 * pass(2 * 2 * (2 + 1 + 2 + 2), 2 * 2 * 4 + 3) +
         rank % 4 * pass(2 * 5, 2 * 2 + 3);
}
// A word of a component: its place, an address, load, shift, OR twice; two stores, a load and two stores around
// masks, differences and a product. Of each head its eight sums, of four of these four numbers loaded, four
// stored, two addresses.
inline std::uint64_t groupScores(double nBlocks, double g, unsigned rank) {
  return shared(nBlocks * 8,
                10 + rank * pass(5, 3 + 3 + 5) + g * (twoSums(rank) + 2 * (4 + 4 + 2) + 6));
}
// Load, store; two addresses of a component.
inline std::uint64_t storeRecords(double d, double nWords) {
  return multi(12 + share(d) * (nWords * (2 + loopSlots) + 6));
}
inline std::uint64_t nextBlock() { return single(3); }
// Add, minimum (2), add, store.
inline std::uint64_t blockOffsets(double n) { return shared(n, 5 + loopSlots); }

// ---- hot_rows.cpp
// An entry is cleared. A way is loaded, its number kept and compared with both ends. Ways are spread evenly
// over the workers that have a position near theirs: the search halves what is left (shift, add, load,
// compare and branch, add, subtract), then load, compare, branch. Of hits, twice an even share and spread in
// the same way: the slot (3), the step (2), two stores, an address, count.
inline std::uint64_t findHot(double topK, double nWays, double nOwners) {
  const auto ofWorker = [](double n) {
    return static_cast<double>(static_cast<unsigned>(n / nWorkers + 1));
  };
  double halvings = 0;
  for (double n = share(topK); n > 1; n /= 2)
    ++halvings;
  return multi(24 + share(topK) * (1 + loopSlots) + nWays * (6 + loopSlots) +
               ofWorker(nWays) * (halvings * (7 + loopSlots) + 3) +
               ofWorker(std::min(nWays, 2 * topK / nOwners)) * 9);
}
// Two stores an entry.
inline std::uint64_t freeWays(double topK) { return multi(share(topK) * (2 + loopSlots) + 14); }
inline std::uint64_t sumFound(double nOwners) { return multi(nOwners * (3 + loopSlots) + 2); }
// Of four owners each address, load, OR; of what is left one by one.
inline std::uint64_t mergeSlots(double nEntries, unsigned nOwners) {
  return shared(nEntries, nOwners / 4 * (4 * 3 + loopSlots) + nOwners % 4 * (3 + loopSlots) + 4);
}
// Of the workers before: their share (8), load, subtract, add. An entry: two loads, branch, add, two
// addresses, two stores, count.
inline std::uint64_t listMisses(double topK) {
  return multi(10 + (nWorkers - 1) * (11 + loopSlots) + share(topK) * (9 + loopSlots));
}
// Of an owner load, minimum (2), add, two to a pass, in four runs. Of each miss that it takes, an even share: a way
// (load, compare and branch, copies), four to a pass, or by position (two loads, two compares with a branch,
// copies); then two loads and four stores.
inline std::uint64_t dealSlots(double topK, double nWays, double nOwners, bool byPosition = false) {
  const double mine = static_cast<double>(static_cast<unsigned>((topK + nOwners - 1) / nOwners)),
               way = byPosition ? 7 + loopSlots : 4 + loopSlots / 4;
  return single(20 + nOwners * (4 + loopSlots / 2) + 40 + mine * (nWays * way + 14));
}
inline std::uint64_t moreMisses(double nSlots, double nGroups) {
  return single(nSlots * (2 + loopSlots) + nGroups * (6 + loopSlots) + 8);
}
inline std::uint64_t mostMiss(double nSlots) { return single(nSlots * (2 + loopSlots) + 4); }
inline std::uint64_t firstMiss(double nBefore) { return single(nBefore * (2 + loopSlots) + 2); }
// Cleared two at a time. Of a worker's piece those that are the head's, which may be all that it has: a load and
// a store.
inline std::uint64_t placeMisses(double nRows, double nOwn) {
  const double pairs = share(nRows / 2);
  return multi(32 + pairs * (1 + loopSlots) + std::min(2 * pairs, nOwn) * (2 + loopSlots));
}
inline std::uint64_t waveRows(double n, double nSlots) {
  return shared(n, nSlots * (3 + loopSlots) + 5);
}
// Its number (2), compare and branch (2), load, subtract, store.
inline std::uint64_t headRows(double n) { return shared(n, 7 + loopSlots); }
// Of each row and pair a run of words: load, store. Of each slice of values and row 64 bits at a time.
inline std::uint64_t cutRows(double n, double d, double width) {
  return multi(share(n * 4) * (d / 8 * (2 + loopSlots) + 8) +
               share(d / width) * (6 + n * (width / 4 * (2 + loopSlots) + 4)));
}
// Of the head's rows one in nSets is the part's own: its words, or 64 bits at a time; of the others the slot.
inline std::uint64_t insertRows(double nRows, unsigned width, double nSets) {
  const double own = static_cast<double>(static_cast<unsigned>(share(nRows) / nSets + 1));
  return multi(18 + share(nRows) * (5 + loopSlots) +
               own * (width / (width % 4 == 0 ? 4 : 2) * (2 + loopSlots) + 8));
}
inline std::uint64_t dealNewest(double nWays) { return single(nWays * (7 + loopSlots) + 16); }
inline std::uint64_t insertNewest(double nOwners, double width) {
  return multi(nOwners * (2 + loopSlots) + 8 + share(width / 2) * (2 + loopSlots));
}
inline std::uint64_t forgetHot(double nWays) { return multi(share(nWays) * (2 + loopSlots) + 4); }

// ---- hot_attention.cpp
// Of an entry the slot, and twice an even share of them is the part's own. Of four heads at once, then two, then one:
// the pairs of every eight components (of the key an address, a load, widen; of each head load, widen, multiply,
// add), two to a pass; then a store.
inline std::uint64_t laneSums(double topK, double nSets, unsigned g, unsigned d) {
  const double own = static_cast<double>(
      static_cast<unsigned>(std::min(share(topK), 2 * share(topK) / nSets + 1)));
  const auto ofHeads = [&](double n) {
    return d / 16 * pass(2 * (1 + 3 * n), 2 * (2 + n)) + d / 8 % 2 * pass(1 + 3 * n, 2 + n) + 6 +
           2 * (n - 1);
  };
  return multi(share(topK) * (5 + loopSlots) +
               own * (6 + g / 4 * ofHeads(4) + g % 4 / 2 * ofHeads(2) + g % 2 * ofHeads(1)));
}
// Four loads, three additions of pairs, one of halves; scaled, compared, stored.
inline std::uint64_t laneScores(double n, double g) {
  return shared(n * g, 4 + 4 + 12 + loopSlots);
}
// Of four heads at once, then two, then one. Two entries to a pass: of each slot, address (2), value, the weights;
// widen, and of each head multiply, add. The partial sums' addresses and stores.
inline std::uint64_t hotValues(double topK, double width, unsigned g) {
  const double nBlocks = static_cast<double>(static_cast<unsigned>((topK + 63) / 64)),
               items = share(nBlocks * width / 2), rows = std::min(topK, 64.0);
  const auto ofHeads = [&](double n) {
    return items * (rows / 2 * pass(2 * (1 + 2 * n), 2 * (4 + n)) + 8 + 2 * n);
  };
  return multi(g / 4 * ofHeads(4) + g % 4 / 2 * ofHeads(2) + g % 2 * ofHeads(1));
}

// ---- query_components.cpp
// Eight components of a head: of each pair widen, mask, add; two loads of the query, four of masks.
constexpr double magnitudeEight = std::max(4.0 * 3, 2.0 + 4) + loopSlots;
// And of each pair a limit and a store.
inline std::uint64_t groupMagnitude(double d, double g) {
  return shared(d / 8, g * magnitudeEight + 4 + 4);
}
inline std::uint64_t magnitudeSums(double d, double g) {
  return shared(g, d / 8 * magnitudeEight + treeSum);
}
// Compares each with all: four of them two loads, and of two pairs compare, mask, add. Its own four
// one by one, the sum, the rank.
inline std::uint64_t componentRanks(double n, double d) {
  return shared(n, d / 4 * pass(2 * 3, 2) + 44);
}
// A worker but the first counts the masks before its range, or those behind it: two loads and
// additions a pass. It lists its range: load, branch, and of what is selected, spread evenly, the
// index, and of each head load, widen, store and two addresses. All sum up for their heads, with 40
// for the inverse temperature.
inline std::uint64_t componentList(unsigned d, unsigned g, double rank) {
  double busiest = 0;
  for (unsigned worker = 0; worker != nWorkers; ++worker) {
    const unsigned range = worker == 0 ? 0 : (d + 4) / 5,
                   before = worker == 0 ? 0 : std::min(d, (worker - 1) * range),
                   nHeads = (g + nWorkers - 1 - worker) / nWorkers;
    busiest = std::max(busiest, std::min(before, d - before) / 2 * (4 + loopSlots) +
                                    range * (2 + loopSlots + rank / d * (2 + 5 * g)) +
                                    nHeads * (d / 8 * magnitudeEight + treeSum + 40));
  }
  return multi(multiplyHigh + busiest);
}

// ---- softmax.cpp
// Two maxima of pairs beside two loads; at the end the largest of six numbers and a store.
inline std::uint64_t partialMax(double n, double g, unsigned nPieces) {
  const double ofPiece =
      static_cast<double>((static_cast<std::uint64_t>(n / 4) + nPieces - 1) / nPieces);
  return shared(nPieces * g, ofPiece * pass(2, 2) + 6);
}
// Two at a time, of two results or of two heads, where the numbers are even.
inline std::uint64_t reduceMax(double nPartials, unsigned g) {
  if (g == 1)
    return shared((nPartials + 1) / 2, pass(1, 1));
  return g % 2 == 0 ? shared(nPartials, g / 2 * pass(1, 1)) : shared(nPartials, g * pass(1, 2));
}
// Four without a position: two compares, two stores.
inline std::uint64_t softmaxWeights(double nOwn, double nAll, double g) {
  return multi(g * largestOfSix + share(g * nOwn / 4) * (2 * weightPair + loopSlots) +
               share(g * (nAll - nOwn) / 4) * (4 + loopSlots));
}
inline std::uint64_t blockSums(double nBlocks) { return shared(nBlocks, 8 * pass(4, 4) + treeSum); }
// Four at a time.
inline std::uint64_t foldSums(double nBlocks, double g) {
  return shared(g, nBlocks / 4 * pass(4, 4));
}

// ---- key_topk.cpp
// Eight of the 64 counts a pass.
constexpr double clearCounts = 8 * (8 + loopSlots);
// Shift, mask, the place of the count, load, add, store.
constexpr double countDigit = 6;
// At most three sums of 16 digits, three of 4, three of 1, four at a time; after each its numbers
// added up and compared, 6, and two to go on.
inline double settle(double nPartials) {
  return 3 * nPartials * ((4 + 1) * pass(2, 2) + pass(1, 1)) + 9 * (6 + 2 + loopSlots);
}
// Four keys: of each head four divisions, two additions beside three loads; scale, store, to integers,
// count.
inline std::uint64_t groupKeys(double n, double g) {
  return multi(clearCounts + share(n / 4) * (g * pass(4 * floatDivide + 2, 3) + 2 + 2 +
                                             2 * pairToInteger + 4 * countDigit + loopSlots));
}
// A key: load, count.
inline std::uint64_t givenKeys(double n) {
  return multi(clearCounts + share(n) * (1 + countDigit + loopSlots));
}
// Four keys, of each load, shift, compare, branch; one key in four begins with the prefix, over all
// passes.
inline std::uint64_t keyHistogram(double n, double nPartials) {
  return multi(clearCounts + settle(nPartials) + share(n / 4) * (4 * 4 + loopSlots + countDigit));
}
// Of each part the counts of six workers for two digits: six additions beside six loads.
inline double digitPairSum(double nRows) { return nRows * pass(6, 6) + 6; }
inline std::uint64_t sumCounts(double nItems, double nRows) {
  return shared(nItems, digitPairSum(nRows));
}
// A key: load, compare, branch; of one in eight the bit, 4. Of a piece what is where, 10, and of both
// words the number of ones as a float and two stores.
inline std::uint64_t markKeys(double n, double nPartials) {
  const double piece = 32 * (3 + loopSlots) + 32 / 8 * 4 + 10 + 2 * (1 + toFloat + 1 + 2);
  return multi(settle(nPartials) + share(n / 32) * piece);
}
// The worker's entries by a product; eight pieces at a time, each loaded and added, then how many are
// selected (minimum, sum, convert, to an integer, compare, branch); at most eight single ones; the ones
// before its own, 10 in each of five halves. An entry is 12, a piece that it walks over 18.
inline std::uint64_t expandMarks(double nPieces, double nEntries, double topK) {
  const double skipped = 3 + toInteger + 2 + loopSlots;
  return multi(multiplyHigh + nPieces / 8 * (8 + skipped) + 8 * (1 + skipped) + 5 * 10 +
               share(nEntries) * (12 + 18 * nPieces / topK));
}
// Of a block two words of marks, 5 each; of each head eight lanes in memory, cleared, loaded, added up,
// and a selected position 13.
inline std::uint64_t selectedSums(double nBlocks, double g, double perBlock) {
  return shared(nBlocks, 2 * 5 + g * (4 + 13 * perBlock + 4 + treeSum));
}

// ---- gathered_attention.cpp
// A score is scaled, compared and stored, the row tested.
inline std::uint64_t rowScores(double n, double g, double d) {
  return shared(n * g, d / 8 * dotEight + treeSum + 5 + loopSlots);
}
// One number at a time, for there are few; load, test, store. Of heads without a row of the worker only the test.
inline std::uint64_t rowWeights(double n, double g) {
  const double rows = share(n * g), heads = std::min(g, rows);
  return multi(heads * largestOfSix + (g - heads) * loopSlots +
               rows * (weightPair + 4 + loopSlots));
}
// Four pairs beside eight loads, for a list may begin at any word.
inline std::uint64_t listSums(double topK, double g) {
  return shared(g, topK / 8 * pass(4, 8) + topK / 64 * (treeSum + 6) + 16);
}

// ---- weighted_values.cpp
// Two rows to a pass: of each pair widen, multiply, add; of each row the weight, the address, the
// values in 64 bits, or in 32 where there are two.
inline std::uint64_t weightedValues(double nBlocks, double nRows, double width, double g) {
  const double lanes = width > 12 ? 8 : 2, // as the codelet does
      pairs = lanes / 2, words = lanes == 8 ? 2 : 1, row = pass(2 * pairs * 3, 2 * (2 + words)) / 2;
  return shared(nBlocks * g * (width / lanes), std::min(nRows, 64.0) * row + pairs + 12);
}
// Four pairs of each block; the accumulator loaded and stored.
inline std::uint64_t foldBlocks(double nBlocks, double width, double g) {
  return shared(g * width / 8, nBlocks * pass(4, 4) + 8 + 4);
}

// ---- combine.cpp
// Eight components: flush, divide, clamp, narrow, two stores, on to the next.
constexpr double finish = 4 * (flushPair + clampPair + 1) + 8 * floatDivide + 2 + 3;
// The share (divide, flush, minimum, loads), the blocks with an address each, the mean (divide; of each
// pair two products and a sum; 1 - alpha).
inline std::uint64_t combine(double nBlocks, double width, double g) {
  return shared(g * width / 8, floatDivide + flushPair + 5 + nBlocks * pass(4, 5) +
                                   8 * floatDivide + 4 * 3 + 1 + finish);
}
// As combine, without share and mean.
inline std::uint64_t combineList(double nBlocks, double width, double g) {
  return shared(g * width / 8, 5 + nBlocks * pass(4, 5) + finish);
}
inline std::uint64_t combineDense(double width, double g) { return shared(g * width / 8, finish); }

// ---- dense_scores.cpp, waves.cpp
inline std::uint64_t denseScores(double n, double g, double d) {
  return shared(n, g * (d / 8 * dotEight + treeSum + 2 + loopSlots)); // scale, store
}
// Add, compare, branch, store.
inline std::uint64_t rowOffsets(double n) { return shared(n, 4 + loopSlots); }
// Load, compare, branch, copy.
inline std::uint64_t longestRow(double nSlots) { return shared(nSlots, 4 + loopSlots); }
inline std::uint64_t nextWave() { return single(5 * 4 + 8); }

// ---- cache_append.cpp, quantise.cpp
inline std::uint64_t appendOffsets() { return single(8); }
// The half, its word, mask, shift, OR, store, the address.
inline std::uint64_t appendTail(double d) { return multi(10 + share(d) * (7 + loopSlots)); }
// Widen and add beside six loads and four stores.
inline std::uint64_t appendSum(double width) { return shared(width / 8, pass(8, 10)); }
inline std::uint64_t advanceLength() { return single(10); }
inline std::uint64_t anyFull(double n) { return single(n * (2 + loopSlots)); }
inline std::uint64_t flushOffsets(double d) { return multi(12 + share(d) * (2 + loopSlots)); }
inline std::uint64_t chunkFull() { return single(8); }
// The least and largest of eight keys at a time (of each pair widen, two selects), then of eight
// numbers; 40 for the step; of 64 codes load, widen, three of arithmetic, to an integer, subtract,
// limit, shift, OR.
constexpr double quantiseBlock = 8 * (4 * (1 + 2 * pairSelect) + loopSlots) + 14 * scalarSelect +
                                 40 + 64 * (2 + 3 + toInteger + 1 + 3 + 2 + loopSlots);
inline std::uint64_t quantiseTail(double d) { return shared(d, quantiseBlock); }

// ---- row_codes.cpp
// Of four codes: load, two masks, a shift, two ORs, by a store of two words and a load to the numbers'
// registers; beside that widen, subtract, multiply by pairs, narrow. Of a scale load, choose, move.
constexpr double decodeFour = 1 + 2 + 1 + 2 + pairToFloat, decodeScale = 4 + toFloat;
// Of eight components of a key two fours, their scale, four words stored with their addresses.
constexpr double decodeOctet = 2 * decodeFour + decodeScale + 3;
inline std::uint64_t cutCodes(double n, double d, double width) {
  return multi(share(n * d / 8) * (decodeOctet + 4 * 2 + loopSlots) +
               share(d / width) *
                   (6 + n * (width / 4 * (decodeFour + decodeScale + 1 + loopSlots) + 6)));
}
// Of two positions an octet each, eight words mixed by mask, shift and OR, and stored.
inline std::uint64_t codeColumns(double d) {
  return shared(d / 8, 64 / 2 * (2 * (decodeOctet + 3) + 8 * (3 + 1) + loopSlots));
}
// Of a group four pairs of lanes twice widened, without sign, compared; lanes to one number; the scale:
// to an integer, four of rounding, back, two limits, a division. Of four codes load, widen, multiply,
// round, limit, multiply, store; through integer registers each masked, shifted, joined.
constexpr double roundGroup = 2 * (4 * 4 + loopSlots) + 7 * 2 + toInteger + 4 + toFloat + 2 +
                              floatDivide +
                              4 * (2 * 2 + 2 * 6 + 2 + 2 * pairToInteger + 4 * 3 + 1 + loopSlots);
inline std::uint64_t roundRows(double n, double width) {
  const double twos = static_cast<double>(static_cast<unsigned>((width + 31) / 32));
  return shared(n * twos, 2 * roundGroup + 8);
}

// ---- cache_fill.cpp, quantise.cpp
inline std::uint64_t fillLength() { return single(10); }
inline std::uint64_t fillOffsets(double n) { return shared(n, 3 + loopSlots); }
// 4 x 4 halves: eight words loaded, eight of mask, shift and OR stored, 12 addresses.
inline std::uint64_t fillColumns(double d, double n) {
  return shared(d / 4, n / 4 * (8 + 8 * (3 + 1) + 12 + loopSlots));
}
// Four halves loaded and stored.
inline std::uint64_t fillTail(double d, double n) { return shared(d, n / 4 * (2 + loopSlots) + 6); }
// A row: widen and add four pairs beside three of memory.
inline std::uint64_t fillSum(double n, double width) {
  return shared(width / 8, n * pass(4 * 2, 3) + 8);
}
inline std::uint64_t fillIndex(double d, double nBlocks) {
  return shared(d, nBlocks * quantiseBlock);
}
inline std::uint64_t fillTailIndex(double d, double nWords) {
  return shared(d, nWords * (2 + loopSlots) + 64 / 4 * (2 + loopSlots) + 6);
}
inline std::uint64_t activeToken() { return single(8); }

// ---- window_history.cpp
// Of each head two loads, an address, divide, multiply, round, to an integer, subtract, add; a store.
inline std::uint64_t listShares(double n, double g) {
  return shared(n, g * (3 + floatDivide + 2 + toInteger + 2 + loopSlots) + 2 + loopSlots);
}
// Of each KV head load, add, address; a store.
inline std::uint64_t sumShares(double n, double nKvHeads) {
  return shared(n, nKvHeads * (3 + loopSlots) + 2 + loopSlots);
}
inline std::uint64_t nextStep() { return single(8); }
// A position of the oldest step: two loads, subtract, two stores. The search halves the list (shift, add,
// load, compare and branch, two to go on). Each of a worker's positions may be selected: load, subtract,
// compare and branch, the share, its store, a load, add, store, two addresses.
inline std::uint64_t addStep(double length, double topK) {
  double halvings = 0;
  for (double n = topK; n >= 1; n /= 2)
    ++halvings;
  const double own = share(length);
  return multi(24 + own * (5 + loopSlots) + halvings * (7 + loopSlots) +
               std::min(own, topK) * (11 + loopSlots));
}
// Two divisions, limits and sums. Of an entry compare, branch, multiply, add, two stores.
constexpr double stridedPositions = 2 * integerDivide + 14;
inline std::uint64_t stridedCount() { return single(stridedPositions); }
inline std::uint64_t stridedRows(double n) {
  return multi(stridedPositions + share(n) * (9 + loopSlots));
}

// ---- layers.cpp
// A load, a store; the addresses of a run.
inline std::uint64_t moveLayer(double nRows, double nCopies) {
  return multi(nRows * (share(nCopies) * (2 + loopSlots) + 6));
}
inline std::uint64_t moveTail(double nRows, double nCopies, double nWords) {
  return multi(nRows * ((share(nCopies) + share(nWords)) * (2 + loopSlots) + 2 * 6));
}

} // namespace cycles
} // namespace sparq
