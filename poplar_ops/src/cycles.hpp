// SPDX-License-Identifier: Apache-2.0
//
// Cycle estimates of the vertices, from instruction counts.
//
// A worker issues one bundle (a load, store or integer instruction beside a floating-point one)
// every six tile cycles; six workers fill the tile's issue slots. Slots are counted from the
// arithmetic of each inner loop at one slot an instruction: fp16 to fp32 of a pair, multiply, add,
// compare, load of 64 bits 1; fp32 divide 3 (data-dependent, 1 or 3; PopLibs' public estimators).
// Loads co-issue with arithmetic, so a loop costs the larger of the two counts. A call costs about
// 20 slots (PopLibs' estimators of comparable vertices). No estimate here was measured on an IPU.
#pragma once

#include <cstdint>

namespace sparq {
namespace cycles {

constexpr std::uint64_t nWorkers = 6;
constexpr std::uint64_t callSlots = 20;

// Slots for eight lanes.
constexpr double widenLanes = 4;           // four pairs fp16 -> fp32; two 64-bit loads beside them
constexpr double multiplyAddLanes = 4 + 4; // four pairs each
constexpr double dotLanes = 2 * widenLanes + multiplyAddLanes;
constexpr double accumulateLanes = widenLanes + multiplyAddLanes; // fp32 scalar times fp16 lanes
// Softmax weight of eight: subtract, two clamps and a select (compare + two bitwise each), 19
// multiplies and adds of exp; its integer work runs beside.
constexpr double weightLanes = 4 * (1 + 3 * 3 + 19) + 4;
constexpr double divideLanes = 8 * 3 + 4;
constexpr double scalarStep = 3; // load, compare or add, branch or select

// A MultiVertex, in tile cycles: `items` pieces of work of `slots` each, shared out over six workers.
inline std::uint64_t shared(double items, double slots) {
  const auto each = static_cast<std::uint64_t>((items + nWorkers - 1) / nWorkers);
  return nWorkers * (callSlots + static_cast<std::uint64_t>(static_cast<double>(each) * slots));
}

// The same on every worker, or on one worker.
inline std::uint64_t repeated(double items, double slots) {
  return nWorkers * (callSlots + static_cast<std::uint64_t>(items * slots));
}

// A Vertex: one worker, in its own issue slots.
inline std::uint64_t single(double items, double slots) {
  return callSlots + static_cast<std::uint64_t>(items * slots);
}

} // namespace cycles
} // namespace sparq
