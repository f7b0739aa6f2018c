// SPDX-License-Identifier: Apache-2.0
//
// Cycle estimates of the vertices, from instruction counts.
//
// A worker issues one bundle (a load, store or integer instruction beside a floating-point one)
// every six tile cycles; six workers fill the tile's issue slots. Slots are counted from the
// arithmetic of each inner loop at one slot an instruction: fp16 to fp32 of a pair, multiply, add,
// compare, load of 64 bits 1; fp32 divide 3 (data-dependent, 1 or 3; PopLibs' public estimators).
// Loads co-issue with arithmetic, so a loop costs the larger of the two counts. A call costs about
// 20 slots (PopLibs' estimators of comparable vertices). Where the work depends on the data, an
// estimate is for a full part; ties in top-k are counted as rare. No estimate here was measured on
// an IPU.
#pragma once

#include <cstdint>

namespace sparq {
namespace cycles {

constexpr unsigned nWorkers = 6;
constexpr double callSlots = 20;

// Slots for one pair of fp32 lanes.
constexpr double widenPair = 1;                  // fp16 -> fp32; the load beside it
constexpr double accumulatePair = widenPair + 2; // fp32 scalar times fp16 pair, added up
constexpr double dotPair = 2 * widenPair + 2;    // fp16 times fp16, added up
// Softmax weight: subtract, two clamps and a select (compare + two bitwise each), 19 multiplies and
// adds of exp; its integer work runs beside; load and store.
constexpr double weightPair = 1 + 3 * 3 + 19 + 1;
constexpr double dividePair = 2 * 3 + 2; // and added up
constexpr double widenLanes = 4 * widenPair;
constexpr double scalarStep = 3; // load, compare or add, branch or select

// The key index (docs/exactness.md E9). A component's block of 64 keys to a record: least and
// largest of pairs (widen, two compares and four of the selects), then of each key convert,
// subtract, multiply, round, take the integer, compare and select, shift and or.
constexpr double quantiseBlock = 32 * (widenPair + 6) + 64 * 10 + 40;
// A component's coefficient for a block: two fp16 numbers out of a word and widened (5), multiply,
// magnitude and maximum (4), multiply and add of the offset, store; then load, multiply, round, take
// the integer, store.
constexpr double coefficient = 5 + 4 + 2 + 1 + 6;
// A word of codes and its coefficient: two loads, then shift, mask, multiply and add for each pair of
// codes of 4 bits (four pairs, one without a shift), or for each code of 8 bits (one without a shift,
// one without a mask).
constexpr double codesOfFour = 2 + 4 * 4 - 1, codesOfEight = 2 + 4 * 4 - 2;
// Taking apart eight sums of 4-bit codes that share four words, once in 16 components.
constexpr double splitSums = 4 * 6;
// A sum to a score: convert, three of arithmetic, store.
constexpr double codeScore = 5;

// The most that one of six workers gets of `items` pieces of work.
inline double share(double items) {
  return static_cast<double>((static_cast<std::uint64_t>(items) + nWorkers - 1) / nWorkers);
}

// A MultiVertex whose busiest worker needs `slots` besides the call: in tile cycles.
inline std::uint64_t multi(double slots) {
  return static_cast<std::uint64_t>(nWorkers * (callSlots + slots));
}

// `items` pieces of work of `slots` each, shared out.
inline std::uint64_t shared(double items, double slots) { return multi(share(items) * slots); }

// A Vertex, one worker: in its own issue slots.
inline std::uint64_t single(double items, double slots) {
  return static_cast<std::uint64_t>(callSlots + items * slots);
}

} // namespace cycles
} // namespace sparq
