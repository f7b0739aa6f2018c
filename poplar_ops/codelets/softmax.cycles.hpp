// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lanes.cycles.hpp"

namespace sparq::cycles {

// Two maxima of pairs beside two loads; at the end the largest of six numbers and a store.
inline std::uint64_t partialMax(double n, double g, unsigned nPieces) {
  const double ofPiece =
      static_cast<double>((static_cast<std::uint64_t>(n / 4) + nPieces - 1) / nPieces);
  return shared(nPieces * g, ofPiece * pass(2, 2, computed) + 6);
}
// Two results or two heads at a time, where their number is even.
inline std::uint64_t reduceMax(double nPartials, unsigned g) {
  if (g == 1)
    return shared((nPartials + 1) / 2, pass(1, 1, computed));
  return g % 2 == 0 ? shared(nPartials, g / 2 * pass(1, 1, computed))
                    : shared(nPartials, g * pass(1, 2, computed));
}
// A worker's run. One head takes two pairs a pass, four heads take two of their rows a pass, other
// numbers a pair (or a number) of each row, with an address.
inline double ofRuns(double nPartials) {
  return static_cast<double>((static_cast<unsigned>(share(nPartials)) + 1) / 2);
}
inline std::uint64_t reduceRuns(double nPartials, unsigned g) {
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

} // namespace sparq::cycles
