// SPDX-License-Identifier: Apache-2.0
//
// Vectors of codes for group_products.hpp, in the compiler's own vectors: a code in 16 bits, four
// outputs.
#pragma once

#include "vectors.hpp"

using EightBytes = unsigned char __attribute__((vector_size(8)));
using EightShorts = short __attribute__((vector_size(16)));

struct Codes {
  EightShorts first, last;
};
constexpr unsigned codeBytes = 16; // that one is loaded from

inline Codes loadCodes(const unsigned char *from) {
  EightBytes first, last;
  __builtin_memcpy(&first, from, sizeof(first));
  __builtin_memcpy(&last, from + sizeof(first), sizeof(last));
  return {__builtin_convertvector(first, EightShorts), __builtin_convertvector(last, EightShorts)};
}
// The lower and the upper half of each byte.
inline Codes lowerCodes(Codes x) { return {x.first & 15, x.last & 15}; }
inline Codes upperCodes(Codes x) { return {x.first >> 4, x.last >> 4}; }
inline Codes broadcastWord(const signed char *from) {
  const EightShorts word = {from[0], from[1], from[2], from[3], from[0], from[1], from[2], from[3]};
  return {word, word};
}
// At most 8 words: one adds at most 15 * 128 to 16 bits.
inline Codes addQuads(Codes sum, Codes codes, Codes words) {
  return {sum.first + codes.first * words.first, sum.last + codes.last * words.last};
}
// 256 times the sums of `high`, those of `low`, and `start`.
inline Vec sumOfBoth(Codes high, Codes low, int start) {
  Vec sums{};
  for (unsigned i = 0; i < width; ++i) {
    const EightShorts &h = i < 2 ? high.first : high.last, &l = i < 2 ? low.first : low.last;
    int sum = start;
    for (unsigned j = i % 2 * 4; j < i % 2 * 4 + 4; ++j)
      sum += 256 * h[j] + l[j];
    sums[i] = static_cast<float>(sum);
  }
  return sums;
}
