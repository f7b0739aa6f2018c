// SPDX-License-Identifier: Apache-2.0
//
// Rules that estimate a codelet in issue slots, as the compiler of an IPU would translate it. Each
// <stage>.cycles.hpp applies them to codelets: to what their inner loops load, compute and store.
// Prices of instructions are taken from the public back end of that compiler; the overhead of a
// loop was fitted to published measurements. docs/device_model.md lists both.
//
// A worker issues one bundle every six tile cycles: an instruction of the main side (a load, store,
// branch or integer instruction) beside one of floating point. Six workers fill the tile's slots.
// Below `arithmetic` is floating point, `main` all else.
//
// Where the work depends on the data, an estimate is for a full part whose selected positions are
// spread evenly, and ties in top-k are rare. Widths are multiples of 8, lengths of parts multiples
// of 64.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sparq::cycles {

constexpr unsigned nWorkers = 6;
// A worker's start, its vertex's fields, its end (PopLibs' estimators of comparable vertices).
constexpr double callSlots = 20;
// ---- the loop itself, in slots a pass, by what the compiler knows of its end
// Stores nothing, and counts by ones to an end that is known before the loop: `rpt`, which is free.
constexpr double repeated = 0;
// It goes by ones to an end in a local copy: counter and branch in one.
constexpr double counted = 1;
// Another step, or another end: step, compare, branch.
constexpr double computed = 3;
// The end is a field of the vertex, which a store in the loop may have changed, so each pass loads
// and shifts it.
constexpr double reloaded = 5;

// ---- a pass of a loop: what issues together
// One instruction waits for another: nothing does.
inline double pass(double arithmetic, double main, double loop) { return arithmetic + main + loop; }
// Several sums side by side, or other work that does not wait: of the side with fewer instructions
// half does.
inline double sidePass(double arithmetic, double main, double loop) {
  return arithmetic + main - std::min(arithmetic, main) * 0.5 + loop;
}
// Numbers in pairs of fp32 that a pass needs at once: four are in registers, others are stored and
// loaded.
inline double spilled(double pairs) { return 2 * std::max(0.0, pairs - 4); }

// ---- floating point: one instruction a pair of fp32, one slot each, but for these
constexpr double floatDivide = 3; // of one number; 1 or 3 by the data
// Four products, each added to an accumulator (an outer product of two pairs), are one instruction
// too, and so is to read two accumulators.
constexpr double scalarSelect = 4; // compare, fetch the flag, branch, copy: no conditional move
constexpr double pairSelect = 5;   // compare, then both sides masked and joined, the mask inverted

// ---- between the register files: by a store and a load
constexpr double toInteger = 2, toFloat = 2; // one number
constexpr double pairToInteger = 3;          // one store of 64 bits, two loads of 32
constexpr double pairToFloat = 3;            // two stores, one load

// ---- integers: vectors are worked on number by number
constexpr double multiplyHigh = 15;  // the high half of a product, by four products of 16 bits
constexpr double integerDivide = 40; // a call, 4 a quotient bit

// ---- memory: 64 bits in one access where the compiler knows the address to be a multiple of 8
// What no codelet does any more in a loop: an access of 64 bits at a multiple of 4 (two of 32), a
// division of integers, the store of a single half (a call, 10 slots).

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
inline std::uint64_t single(double slots) { return static_cast<std::uint64_t>(callSlots + slots); }

// ---- what several codelets do (lanes.hpp, arith/arith.hpp)
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
