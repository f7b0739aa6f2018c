// SPDX-License-Identifier: Apache-2.0
//
// The radix selection: sizes that its vertices and their builder share.
#pragma once

namespace sparq {

// A pass settles so many bits of all keys, and counts keys by the values that these may have.
constexpr unsigned digitBits = 6, nDigits = 1u << digitBits;
// Passes that settle 30 bits, all that keys made of floats have. Wide keys have one more.
constexpr unsigned nPasses = 5;
// Positions that one word of marks stands for.
constexpr unsigned pieceSize = 32;

} // namespace sparq
