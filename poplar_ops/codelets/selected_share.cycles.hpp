// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lanes.cycles.hpp"

namespace sparq::cycles {

// A block: two words of marks, 3 each. Each head: eight lanes in memory, cleared, loaded, added up;
// 13 for a selected position.
inline std::uint64_t selectedSums(double nBlocks, double g, double perBlock) {
  return shared(nBlocks, 2 * 3 + g * (4 + 13 * perBlock + 4 + treeSum));
}

} // namespace sparq::cycles
