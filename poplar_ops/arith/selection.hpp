// SPDX-License-Identifier: Apache-2.0
//
// The selection of positions: sizes that its vertices and their builder share.
#pragma once

namespace sparq {

// A pass settles so many bits of all keys, and counts keys by the values that these may have.
constexpr unsigned digitBits = 6, nDigits = 1u << digitBits;
// Passes that settle 30 bits, all that keys made of floats have. Wide keys have one more.
constexpr unsigned nPasses = 5;
// Positions that one word of marks stands for.
constexpr unsigned pieceSize = 32;
// A key is at most the group size, give or take a rounding. Scaled by a power of two (exactly, and
// far from denormal: a weight is above 2^-78, a sum of weights at most 2^24) it is below 2, so that
// the two highest bits of its pattern are 0 and five digits are all of it.
constexpr float keyScale = 0x1p-16f;

} // namespace sparq
