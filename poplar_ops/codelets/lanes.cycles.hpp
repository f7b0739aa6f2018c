// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// Softmax weight of a pair: subtract the maximum, compare with the least argument and mask twice,
// in exp compare and mask, 19 of arithmetic, times the power of two. Of that the numbers go through
// the integer registers, each shifted and added to. Of the 12 constants of exp half, which are
// loaded for two pairs.
constexpr double weightPair = 1 + 3 + 2 + 19 + 1 + pairToInteger + 2 * 2 + pairToFloat + 12 / 2.0;
// Eight lanes to a number: three sums of pairs, one of their halves; its store.
constexpr double treeSum = 4 + 1;
// Six loads, the addresses of five, the last maximum; the others beside the loads.
constexpr double largestOfSix = 6 + 5 + 1;
// Eight products of fp16, added up: of each of four pairs widen twice, multiply, add; two loads of
// each row. Eight lanes are all registers, so each goes out and in.
inline double dotEight() { return pass(4 * 4, 2 * 2, computed) + spilled(4 + 4); }
// Of a pair: magnitude, compare, mask. Of a pair: two limits.
constexpr double flushPair = 3, clampPair = 2;

} // namespace sparq::cycles
