// SPDX-License-Identifier: Apache-2.0
//
// Moving fp16 numbers as they are. An IPU stores no less than 32 bits: to store one half by itself
// is a call. Here words are moved, and a single half is put into its word in integer registers.
#pragma once

#include "lanes.hpp"

namespace sparq {

// Two halves, the first in the low end.
inline unsigned loadWord(const half *from) {
  unsigned word;
  __builtin_memcpy(&word, aligned<sizeof(word)>(from), sizeof(word));
  return word;
}
inline void storeWord(half *to, unsigned word) {
  __builtin_memcpy(aligned<sizeof(word)>(to), &word, sizeof(word));
}

// array[index] = the half at `from`; nobody else may write its word at the same time. `array`
// begins at a whole word.
inline void copyHalf(half *array, unsigned index, const half *from) {
  unsigned short bits;
  __builtin_memcpy(&bits, from, sizeof(bits));
  const unsigned shift = index % 2 * 16, even = index & ~1u;
  const unsigned rest = loadWord(array + even) & ~(0xFFFFu << shift);
  storeWord(array + even, rest | static_cast<unsigned>(bits) << shift);
}

// The first n halves of `from` to `to`; both begin at a multiple of 8 bytes.
inline void copyHalves(half *to, const half *from, unsigned n) {
  for (unsigned fours = n / quadSize; fours != 0; --fours, to += quadSize, from += quadSize) {
    Pair four; // as they are: 64 bits
    __builtin_memcpy(&four, aligned<sizeof(four)>(from), sizeof(four));
    __builtin_memcpy(aligned<sizeof(four)>(to), &four, sizeof(four));
  }
  for (unsigned i = 0; i != n % quadSize; ++i)
    copyHalf(to, i, from + i);
}

// Rows of two words each to columns: 4 x 4 halves, in registers.
inline void transposeFour(const half *from, unsigned fromStride, half *to, unsigned toStride) {
  constexpr unsigned low = 0xFFFFu;
  for (unsigned i = 0; i != quadSize; i += 2)
    for (unsigned j = 0; j != quadSize; j += 2) {
      const unsigned a = loadWord(from + i * fromStride + j),
                     b = loadWord(from + (i + 1) * fromStride + j);
      storeWord(to + j * toStride + i, (a & low) | b << 16);
      storeWord(to + (j + 1) * toStride + i, a >> 16 | (b & ~low));
    }
}

} // namespace sparq
