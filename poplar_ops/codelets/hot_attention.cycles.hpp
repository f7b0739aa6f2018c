// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

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
