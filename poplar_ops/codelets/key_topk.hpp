// SPDX-License-Identifier: Apache-2.0
//
// Marks of selected positions, one bit each: what says which of them are taken.
#pragma once

#include "arith/selection.hpp"
#include "segments.hpp"

namespace sparq {

// More ties than there can be: all are taken, and nobody need count those before his own.
static constexpr float everyTie = 0x1p25f;

// The index of the lowest one of a word that is not 0.
static inline unsigned lowestOne(unsigned bits) { return 31 - __builtin_clz(bits & (0u - bits)); }

// Of the ones of a word the lowest `n`.
static inline unsigned firstTies(unsigned equal, float n) {
  unsigned first = 0;
  for (; equal != 0 && n > 0.0f; equal &= equal - 1, n -= 1.0f)
    first |= equal & (0u - equal);
  return first;
}

} // namespace sparq
