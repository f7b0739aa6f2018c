// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// Softmax weight of a pair: subtract the maximum, compare with the least argument, mask twice; in
// exp compare and mask, 19 of arithmetic, times the power of two. The numbers pass through the
// integer registers for that, each shifted and added to. Half of exp's 12 constants are loaded,
// once for two pairs.
constexpr double weightPair = 1 + 3 + 2 + 19 + 1 + pairToInteger + 2 * 2 + pairToFloat + 12 / 2.0;
// Eight lanes to a number: three sums of pairs, one of their halves, a store.
constexpr double treeSum = 4 + 1;
// Six loads, five addresses, the last maximum; the other maxima beside the loads.
constexpr double largestOfSix = 6 + 5 + 1;
// Eight products of fp16, added up: for each of four pairs widen twice, multiply, add; two loads
// for each row. Eight lanes fill all registers, so each is stored and loaded.
inline double dotEight() { return pass(4 * 4, 2 * 2, computed) + spilled(4 + 4); }
// For a pair: magnitude, compare, mask. For a pair: two limits.
constexpr double flushPair = 3, clampPair = 2;

} // namespace sparq::cycles
