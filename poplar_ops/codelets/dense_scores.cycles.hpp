// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lanes.cycles.hpp"

namespace sparq::cycles {

inline std::uint64_t denseScores(double n, double g, double d) {
  return shared(n, g * (d / 8 * dotEight() + treeSum + 2 + reloaded)); // scale, store
}
// Add, compare, branch, store.
inline std::uint64_t rowOffsets(double n) { return shared(n, 4 + reloaded); }

} // namespace sparq::cycles
