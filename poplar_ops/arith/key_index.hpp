// SPDX-License-Identifier: Apache-2.0
//
// The key index of 8, 4 or 2 bits (contract E9): how a block of 64 positions of one component is
// kept, and the arithmetic that makes it.
//
// A record of a block, in words of 32 bits: the codes, ascending by position from the low end of
// the first word; then one word with the step (low half) and the lowest value (high half).
//
// One text for codelets and for the host, which has no type for fp16: both give and take float.
#pragma once

#include "arith.hpp"

namespace sparq {

// Words of a record that hold codes, and all of them.
constexpr unsigned codeWords(unsigned indexBits) { return blockSize * indexBits / 32; }
constexpr unsigned recordWords(unsigned indexBits) { return codeWords(indexBits) + 1; }

// The largest code.
constexpr unsigned largestCode(unsigned indexBits) { return (1u << indexBits) - 1; }

// The largest coefficient of a query: as large as is of use, but such that the sum of `rank`
// products with codes stays below 2^24.
inline unsigned coefficientLimit(unsigned indexBits, unsigned rank) {
  const unsigned most = indexBits == 8 ? 2047 : 127,
                 room = ((1u << 24) - 1) / (largestCode(indexBits) * rank);
  return room < most ? room : most;
}

// Adding this rounds a number below 2^22 to an integer, nearest, ties to even, and leaves it in the
// low bits.
constexpr float integerShift = 0x1.8p+23f;
constexpr unsigned integerShiftBits = 0x4B400000u;
inline int roundToInteger(float x) {
  return static_cast<int>(bitcast<unsigned>(x + integerShift) - integerShiftBits);
}

// The step of a block before it is rounded to fp16.
inline float unroundedStep(float low, float high, unsigned indexBits) {
  return (high - low) * (1.0f / static_cast<float>(largestCode(indexBits)));
}
// 1 / step, or 0 where the step is: every code is 0 then.
inline float inverseStep(float step) { return step == 0.0f ? 0.0f : 1.0f / step; }

inline unsigned codeOf(float x, float low, float inverse, unsigned indexBits) {
  const unsigned code = static_cast<unsigned>(roundToInteger((x - low) * inverse));
  return code < largestCode(indexBits) ? code : largestCode(indexBits);
}

// Packs the codes code(i) of a block.
template <class Code> inline void packCodes(unsigned *words, unsigned indexBits, const Code &code) {
  const unsigned perWord = 32 / indexBits;
  for (unsigned w = 0, i = 0; w != codeWords(indexBits); ++w) {
    unsigned word = 0;
    for (unsigned k = 0; k != perWord; ++k, ++i)
      word |= code(i) << (k * indexBits);
    words[w] = word;
  }
}

// The tail of a cache since its last full chunk, as one of its pieces sees it.
struct TailPiece {
  unsigned first;     // position of the piece's first
  unsigned nComplete; // its blocks that are full, and so quantised
  unsigned nOpen;     // positions of the block behind them, 0 if there is none
  TailPiece(unsigned filled, unsigned chunk, unsigned piece, unsigned tailLength)
      : first((filled & ~(chunk - 1)) + piece * tailLength) {
    const unsigned behind = filled > first ? filled - first : 0;
    const unsigned held = behind < tailLength ? behind : tailLength;
    nComplete = held / blockSize;
    nOpen = held % blockSize;
  }
};

} // namespace sparq
