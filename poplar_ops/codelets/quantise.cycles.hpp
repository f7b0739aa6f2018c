// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

inline std::uint64_t chunkFull() { return single(8); }
// The least and largest of eight keys at a time (widen and two selects for each pair), then of
// eight numbers; 40 for the step; for 64 codes load, widen, three of arithmetic, convert to an
// integer, subtract, limit, shift, OR.
constexpr double quantiseBlock = 8 * (4 * (1 + 2 * pairSelect) + 2 * 8 + counted) +
                                 14 * scalarSelect + 40 +
                                 64 * (2 + 3 + toInteger + 1 + 3 + 2 + counted);
inline std::uint64_t quantiseTail(double d) { return shared(d, quantiseBlock); }
inline std::uint64_t fillIndex(double d, double nBlocks) {
  return shared(d, nBlocks * quantiseBlock);
}
inline std::uint64_t fillTailIndex(double d, double nWords) {
  return shared(d, nWords * (2 + counted) + 64 / 4 * (2 + counted) + 6 + computed);
}

} // namespace sparq::cycles
