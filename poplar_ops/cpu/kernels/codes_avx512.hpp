// SPDX-License-Identifier: Apache-2.0
//
// Vectors of codes for dot_codes_x86.hpp: AVX-512, with VNNI where SPARQ_VNNI is defined.
#pragma once

#include "vectors.hpp"

using Codes = __m512i;

inline Codes loadCodes(const unsigned char *from) { return _mm512_loadu_si512(from); }
inline Codes low8(Codes a, Codes b) { return _mm512_unpacklo_epi8(a, b); }
inline Codes high8(Codes a, Codes b) { return _mm512_unpackhi_epi8(a, b); }
inline Codes low16(Codes a, Codes b) { return _mm512_unpacklo_epi16(a, b); }
inline Codes high16(Codes a, Codes b) { return _mm512_unpackhi_epi16(a, b); }
inline Vec toFloat(Codes x) { return _mm512_cvtepi32_ps(x); }
inline Codes addTotals(Codes a, Codes b) { return _mm512_add_epi32(a, b); }
// The lower and the upper half of each byte.
inline Codes lowerCodes(Codes x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
inline Codes upperCodes(Codes x) { return lowerCodes(_mm512_srli_epi16(x, 4)); }

#ifdef SPARQ_VNNI
// The two codes of each byte, such that takeApart makes of two sums those of the codes. Sums of 32
// bits have room for whole bytes: that is 16 times the second sum too much in the first, and the
// second 16 times too large; one AND for four bytes instead of two and a shift.
inline Codes firstCodes(Codes x) { return x; }
inline Codes secondCodes(Codes x) { return _mm512_and_si512(x, _mm512_set1_epi8(-16)); }
inline void takeApart(Codes &first, Codes &second) {
  first = _mm512_sub_epi32(first, second);
  second = _mm512_srai_epi32(second, 4);
}
// Words of four components that may be added before widenQuads.
constexpr unsigned quadsTogether = ~0u;
inline Codes addQuads(Codes sum, Codes codes, Codes words) {
  return _mm512_dpbusd_epi32(sum, codes, words);
}
inline Codes widenQuads(Codes sum) { return sum; }
inline Codes addPairs(Codes sum, Codes codes, Codes words) {
  return _mm512_dpwssd_epi32(sum, codes, words);
}
// 256 times the sums of `high`, those of `low`, and `start`.
inline Vec sumOfBoth(Codes high, Codes low, int start) {
  const Codes both = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
  return toFloat(_mm512_add_epi32(both, _mm512_set1_epi32(start)));
}
#else
inline Codes firstCodes(Codes x) { return lowerCodes(x); }
inline Codes secondCodes(Codes x) { return upperCodes(x); }
inline void takeApart(Codes &, Codes &) {}
// A word adds at most 2 * 15 * 127 to 16 bits.
constexpr unsigned quadsTogether = 8;
inline Codes addQuads(Codes sum, Codes codes, Codes words) {
  return _mm512_add_epi16(sum, _mm512_maddubs_epi16(codes, words));
}
inline Codes widenQuads(Codes sum) { return _mm512_madd_epi16(sum, _mm512_set1_epi16(1)); }
inline Codes addPairs(Codes sum, Codes codes, Codes words) {
  return _mm512_add_epi32(sum, _mm512_madd_epi16(codes, words));
}
// 256 times the sums of `high`, those of `low`, and `start`; of at most 8 words each.
inline Vec sumOfBoth(Codes high, Codes low, int start) {
  const Codes both =
      _mm512_add_epi32(_mm512_madd_epi16(high, _mm512_set1_epi16(256)), widenQuads(low));
  return toFloat(_mm512_add_epi32(both, _mm512_set1_epi32(start)));
}
#endif

inline Codes broadcastWord(const void *from) {
  int word;
  __builtin_memcpy(&word, from, sizeof(word));
  return _mm512_set1_epi32(word);
}

// Of sixteen numbers of 32 bits, by block: those of the blocks that a vector of codes covers.
template <unsigned bits> inline Codes spread(const void *sixteen, unsigned block) {
  if (bits == 8)
    return broadcastWord(static_cast<const char *>(sixteen) + block * 4);
  const Codes each =
      _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(block)),
                       _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0));
  return _mm512_permutexvar_epi32(each, _mm512_loadu_si512(sixteen));
}

// Stores the scores of one sum; returns those that were stored, some perhaps twice. 4 bits: the
// upper half is of the next block, if n is 2.
template <unsigned bits> inline Vec putScores(float *to, Vec scores, unsigned n) {
  if (bits == 8) {
    store(to, scores);
    return scores;
  }
  const __m256 first = _mm512_castps512_ps256(scores);
  _mm256_storeu_ps(to, first);
  if (n == 1)
    return _mm512_insertf32x8(scores, first, 1);
  _mm256_storeu_ps(to + blockSize, _mm512_extractf32x8_ps(scores, 1));
  return scores;
}
