// SPDX-License-Identifier: Apache-2.0
//
// The buffer of hot rows.
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// ---- hot_find.cpp
// Clear the entries. Load a way, keep its number and compare it with both ends. Ways are spread
// evenly over the workers that hold a position near theirs. The search halves the remaining range
// (shift, add, load, compare and branch, add, subtract), then load, compare, branch. Hits, at twice
// an even share and spread in the same way: the place (3), the step (2), two stores, an address, a
// count.
inline std::uint64_t findHot(double topK, double nWays, double nOwners) {
  const auto ofWorker = [](double n) {
    return static_cast<double>(static_cast<unsigned>(n / nWorkers + 1));
  };
  double halvings = 0;
  for (double n = share(topK); n > 1; n /= 2)
    ++halvings;
  return multi(24 + share(topK) * (1 + counted) + nWays * (6 + computed) +
               ofWorker(nWays) * (halvings * (7 + computed) + 3) +
               ofWorker(std::min(nWays, 2 * topK / nOwners)) * 9);
}
// Two stores an entry.
inline std::uint64_t freeWays(double topK) { return multi(share(topK) * (2 + computed) + 14); }
inline std::uint64_t sumFound(double nOwners) { return multi(nOwners * (3 + repeated) + 2); }
// Four owners a pass: address, load, OR for each; the rest one by one.
inline std::uint64_t mergePlaces(double nEntries, unsigned nOwners) {
  return shared(nEntries,
                nOwners / 4 * (4 * 3 + repeated) + nOwners % 4 * (3 + repeated) + 6 + computed);
}
// Load and subtract the counts of the workers before. An entry: two loads, branch, add, two
// addresses, two stores, count.
inline std::uint64_t listMisses(double topK) {
  return multi(14 + (nWorkers - 1) * (2 + repeated) + share(topK) * (9 + counted));
}

// ---- hot_misses.cpp
// Sum the lists. For each wave of lists, and for the first wave that is none, 8 for each list, and
// 1 for each wave of all. Each unit costs 1 but the last, which has few rows or none.
inline std::uint64_t planMisses(double nSlots, double nLists, double nUnits, double nPasses) {
  const double ofPass = nLists * (8 + counted + 1 + computed) + 12,
               units = std::max(1.0, nPasses - 1) * nUnits * (1 + computed);
  return single(nSlots * (2 + counted) + nLists * (6 + computed) + nPasses * ofPass + units + 16);
}
inline std::uint64_t moreMisses(double nLists, double nUnits) {
  return single(nLists * (5 + counted) + nUnits * (3 + computed) + 20);
}
inline std::uint64_t firstMiss(double nBefore, double nLists) {
  return single(nBefore * (2 + repeated) + nLists * (5 + computed) + 14);
}
// Clear two at a time. A worker loads and stores those of its piece that belong to the head, which
// may be the whole piece.
inline std::uint64_t placeMisses(double nRows, double nOwn) {
  const double pairs = share(nRows / 2);
  return multi(32 + pairs * (1 + computed) + std::min(2 * pairs, nOwn) * (2 + counted));
}
inline std::uint64_t placeFirst(double nRows, double nOwn, double nBefore) {
  return placeMisses(nRows, nOwn) + static_cast<std::uint64_t>(nWorkers * nBefore * (2 + repeated));
}
inline std::uint64_t waveRows(double n, double nSlots) {
  return shared(n, nSlots * (3 + repeated) + 5 + reloaded);
}
// The number (2), compare and branch (2), load, subtract, store.
inline std::uint64_t headRows(double n) { return shared(n, 7 + reloaded); }

// ---- hot_places.cpp
// A worker compares each of its ways with every other: load, compare, add. Then its own key, its
// place and the store.
inline std::uint64_t rankWays(double nWays) {
  return multi(14 + share(nWays) * (nWays * (3 + counted) + 10 + computed));
}
// For each owner load, minimum (2), add, two a pass, in four runs. For each miss that it takes, an
// even share of all: three loads, four stores.
inline std::uint64_t dealPlaces(double topK, double nOwners) {
  const double mine = static_cast<double>(static_cast<unsigned>((topK + nOwners - 1) / nOwners));
  return single(20 + nOwners * (4 + repeated / 2) + 40 + mine * (15 + computed));
}
// For each way load, compare and branch, copies, four a pass.
inline std::uint64_t dealNewest(double nWays) { return single(nWays * (5 + computed / 4) + 16); }
inline std::uint64_t forgetHot(double nWays) { return multi(share(nWays) * (2 + computed) + 4); }

// ---- hot_insert.cpp
// A run of words for each row and pair: load, store. A slice of values for each row, 64 bits at a
// time.
inline std::uint64_t cutRows(double n, double d, double width) {
  return multi(share(n * 4) * (d / 8 * (2 + counted) + 8 + reloaded) +
               share(d / width) * (6 + n * (width / 4 * (2 + counted) + 4 + counted)));
}
// One in nSets of the head's rows is the part's own: copy its words, or 64 bits at a time. The
// other rows cost their place.
inline std::uint64_t insertRows(double nRows, unsigned width, double nSets) {
  const double own = static_cast<double>(static_cast<unsigned>(share(nRows) / nSets + 1));
  return multi(18 + share(nRows) * (5 + computed) +
               own *
                   ((width % 4 == 0 ? width / 4 * (2 + counted) : width / 2 * (2 + computed)) + 8));
}
inline std::uint64_t insertNewest(double nOwners, double width) {
  return multi(nOwners * (2 + repeated) + 14 + share(width / 2) * (2 + computed));
}

// ---- hot_attention.cpp
// Every entry: load, mask, compare, branch. Twice an even share of the entries is the part's own.
// For two heads at once, then one: the pairs of every eight components (address, load and widen the
// key; load, widen, multiply and add for each head), two a pass; then a store.
inline std::uint64_t laneSums(double topK, double nSets, unsigned g, unsigned d) {
  const double own = static_cast<double>(
      static_cast<unsigned>(std::min(share(topK), 2 * share(topK) / nSets + 1)));
  const auto ofHeads = [&](double n) {
    return d / 16 * (sidePass(2 * (1 + 3 * n), 2 * (2 + n), repeated) + 2 * spilled(n + 2)) +
           d / 8 % 2 * (sidePass(1 + 3 * n, 2 + n, repeated) + spilled(n + 2)) + 6 + 2 * (n - 1);
  };
  return multi(10 + share(topK) * (4 + counted) +
               own * (7 + g / 2 * ofHeads(2) + g % 2 * ofHeads(1)));
}
// Four loads, three additions of pairs, one of halves; scale, compare, store.
inline std::uint64_t laneScores(double n, double g) { return shared(n * g, 4 + 4 + 12 + reloaded); }
// Four heads at once, then two, then one; two only, where that leaves no worker with more than one.
// Two entries a pass: for each place the address (2), the value and the weights; widen, then
// multiply and add for each head. At the end addresses and stores of the partial sums.
inline std::uint64_t hotValues(double topK, double width, unsigned g) {
  const double nBlocks = static_cast<double>(static_cast<unsigned>((topK + 63) / 64)),
               items = nBlocks * width / 2, rows = std::min(topK, 64.0);
  const unsigned fours = items * (g / 2) <= nWorkers ? 0 : g / 4, twos = g / 2 - 2 * fours;
  const auto ofHeads = [&](double groups, double n) {
    return share(items * groups) *
           (rows / 2 * (sidePass(2 * (1 + 2 * n), 2 * (4 + n), repeated) + 2 * spilled(n + 2)) + 8 +
            2 * n);
  };
  return multi(ofHeads(fours, 4) + ofHeads(twos, 2) + ofHeads(g % 2, 1));
}

} // namespace sparq::cycles
