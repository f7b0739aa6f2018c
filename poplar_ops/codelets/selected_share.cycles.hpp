// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lanes.cycles.hpp"

namespace sparq::cycles {

// Of a block two words of marks, 3 each; of each head eight lanes in memory, cleared, loaded, added
// up, and a selected position 13.
inline std::uint64_t selectedSums(double nBlocks, double g, double perBlock) {
  return shared(nBlocks, 2 * 3 + g * (4 + 13 * perBlock + 4 + treeSum));
}

} // namespace sparq::cycles
