// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lanes.cycles.hpp"

namespace sparq::cycles {

// Eight components: flush, divide, clamp, narrow, two stores, loop.
constexpr double finish = 4 * (flushPair + clampPair + 1) + 8 * floatDivide + 2 + reloaded;
// A block of eight components: four loads and additions, an address.
inline double foldBlock() { return pass(4, 5, repeated) + spilled(4 + 1); }
// The share (divide, flush, minimum, loads); each block's address; the mean (divide, then two
// products and a sum a pair; 1 - alpha).
inline std::uint64_t combine(double nBlocks, double width, double g) {
  return shared(g * width / 8, floatDivide + flushPair + 5 + nBlocks * foldBlock() +
                                   8 * floatDivide + 4 * 3 + 1 + finish);
}
// As combine, without share and mean.
inline std::uint64_t combineList(double nBlocks, double width, double g) {
  return shared(g * width / 8, 5 + nBlocks * foldBlock() + finish);
}
inline std::uint64_t combineDense(double width, double g) { return shared(g * width / 8, finish); }

} // namespace sparq::cycles
