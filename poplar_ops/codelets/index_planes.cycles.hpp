// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lanes.cycles.hpp"

namespace sparq {
namespace cycles {

// Four components: four loads, two multiplications, two limits, two stores.
inline std::uint64_t planeWeights(double d) { return shared(d / 4, 4 + 2 + 2 + 2 + reloaded); }
// Of so many things those that one worker has, an even number, and the pairs of masks that the one counts that
// has most to count.
inline unsigned ofWorker(unsigned n) { return ((n + nWorkers - 1) / nWorkers + 1) / 2 * 2; }
inline double countedMasks(unsigned n, unsigned masksEach) {
  double most = 0;
  for (unsigned worker = 0; worker != nWorkers; ++worker) {
    const unsigned before = std::min(n, worker * ofWorker(n));
    most = std::max(most, std::min(before, n - before) * masksEach / 2.0);
  }
  return most * (4 + repeated);
}
// Counts masks, two loads and additions a pass. Of each component load, test, branch, next; of what is offered, spread
// evenly, 8 for weight, number and addresses; of each plane multiplication, address, store.
inline std::uint64_t planeMerits(unsigned d, double rank, unsigned bits) {
  return multi(countedMasks(d, 1) +
               ofWorker(d) * (4 + counted + rank / d * (8 + bits * (3 + counted))));
}
// Counts masks. Of each of its components' masks load and branch, of a plane that is read number, store, two steps;
// of each component 8, and of each head load, widen, test, branch, store and two addresses. Then of each head,
// for each component two loads, branch, address, load, widen, magnitude, add, store; and 40 at the end.
inline std::uint64_t planeList(unsigned g, unsigned rank, unsigned bits, double nPlanes) {
  const unsigned own = ofWorker(rank);
  return multi(countedMasks(rank, bits) + own * (bits * (2.0 + counted) + 8 + counted) +
               own * (nPlanes / rank * 4 + g * (5.0 + 2 + counted)) +
               share(g) * (rank * (9 + counted) + treeSum + 40));
}
// Of each block and component two groups: with 4 bits of each plane a load and 7 operations, else of each plane a
// load and of each word of codes shift, mask, shift, OR; branches, and a store of each word. And the step.
inline std::uint64_t joinPlanes(double nBlocks, double rank, unsigned bits, double nPlanes) {
  const double plane = bits == 4 ? 1 + 7 : 1 + 4.0 * bits + 2 + counted;
  return multi(share(nBlocks * rank) * (2 * (nPlanes / rank * plane + bits + 6) + 4 + computed) +
               rank * 8);
}
// Of each component two loads, the mask; of each word load, mask, store.
inline std::uint64_t maskTail(double nBlocks, double rank, unsigned bits) {
  return shared(rank, 14 + nBlocks * (4 + 2.0 * bits * (3 + counted)));
}
// Of each component two loads, two shifts, subtract, multiply, add; and for each block and head 16.
inline std::uint64_t blockMiddles(double nBlocks, double g, double rank) {
  return shared(nBlocks * g, rank * (2 + 3 + 1 + 1 + repeated) + 16 + toFloat);
}
// Of each component load, widen, load, compare, store.
inline std::uint64_t widestSteps(double d) { return shared(d, 5 + computed); }
// Of each block of a component two groups: of each plane and word of codes load, shift, mask, shift, OR; and a store.
inline std::uint64_t splitRecords(double d, double nBlocks, unsigned bits) {
  return multi(d * (share(nBlocks) * (2.0 * bits * (bits * 5.0 + 4) + 8 + computed) + 6));
}

} // namespace cycles
} // namespace sparq
