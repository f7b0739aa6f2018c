// SPDX-License-Identifier: Apache-2.0
//
// Vectors of codes for dot_codes_x86.hpp: AVX2.
#pragma once

#include "vectors.hpp"

using Codes = __m256i;

inline Codes loadCodes(const unsigned char *from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
}
inline Codes low8(Codes a, Codes b) { return _mm256_unpacklo_epi8(a, b); }
inline Codes high8(Codes a, Codes b) { return _mm256_unpackhi_epi8(a, b); }
inline Codes low16(Codes a, Codes b) { return _mm256_unpacklo_epi16(a, b); }
inline Codes high16(Codes a, Codes b) { return _mm256_unpackhi_epi16(a, b); }
// The lower and the upper half of each byte.
inline Codes lowerCodes(Codes x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
inline Codes upperCodes(Codes x) { return lowerCodes(_mm256_srli_epi16(x, 4)); }
// The two codes of each byte; takeApart is for instruction sets that do not separate them here.
inline Codes firstCodes(Codes x) { return lowerCodes(x); }
inline Codes secondCodes(Codes x) { return upperCodes(x); }
inline void takeApart(Codes &, Codes &) {}
inline Vec toFloat(Codes x) { return _mm256_cvtepi32_ps(x); }
inline Codes addTotals(Codes a, Codes b) { return _mm256_add_epi32(a, b); }

// Words of four components that may be added before widenQuads: one adds at most 2 * 15 * 127 to
// 16 bits.
constexpr unsigned quadsTogether = 8;
inline Codes addQuads(Codes sum, Codes codes, Codes words) {
  return _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, words));
}
inline Codes widenQuads(Codes sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
inline Codes addPairs(Codes sum, Codes codes, Codes words) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(codes, words));
}
// 256 times the sums of `high`, those of `low`, and `start`; of at most 8 words each.
inline Vec sumOfBoth(Codes high, Codes low, int start) {
  const Codes both =
      _mm256_add_epi32(_mm256_madd_epi16(high, _mm256_set1_epi16(256)), widenQuads(low));
  return toFloat(_mm256_add_epi32(both, _mm256_set1_epi32(start)));
}

inline Codes broadcastWord(const void *from) {
  int word;
  __builtin_memcpy(&word, from, sizeof(word));
  return _mm256_set1_epi32(word);
}

// Of sixteen numbers of 32 bits, by block: that of the block.
template <unsigned bits> inline Codes spread(const void *sixteen, unsigned block) {
  return broadcastWord(static_cast<const char *>(sixteen) + block * 4);
}

// Stores the scores of one sum and returns them.
template <unsigned bits> inline Vec putScores(float *to, Vec scores, unsigned) {
  store(to, scores);
  return scores;
}
