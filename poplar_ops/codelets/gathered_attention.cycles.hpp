// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lanes.cycles.hpp"

namespace sparq::cycles {

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

} // namespace sparq::cycles
