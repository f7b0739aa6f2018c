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

inline Codes maskBytes(Codes x, int mask) {
  return _mm256_and_si256(x, _mm256_set1_epi8(static_cast<char>(mask)));
}
// The codes of each byte, such that takeApart makes of their sums those of the codes. Of 2 bits the
// second and the fourth count four times: that is a shift less for every vector of codes.
template <unsigned bits> inline void codesOf(Codes x, Codes *codes) {
  const Codes upper = _mm256_srli_epi16(x, 4);
  if (bits == 4) {
    codes[0] = maskBytes(x, 15);
    codes[1] = maskBytes(upper, 15);
  } else {
    for (unsigned n = 0; n < codesOfByte(bits); ++n)
      codes[n] = maskBytes(n < 2 ? x : upper, n % 2 ? 12 : 3);
  }
}
template <unsigned bits> inline void takeApart(Codes *sums) {
  if (bits == 2)
    for (unsigned n = 1; n < codesOfByte(bits); n += 2)
      sums[n] = _mm256_srai_epi32(sums[n], 2);
}
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

inline Codes broadcastWord(const void *from) {
  int word;
  __builtin_memcpy(&word, from, sizeof(word));
  return _mm256_set1_epi32(word);
}

// Of sixteen numbers of 32 bits, by block: those of the blocks that a vector of codes covers. With
// 2 bits these are two, and the number after the last of sixteen is read for a block that is not
// there.
template <unsigned bits> inline Codes spread(const void *sixteen, unsigned block) {
  if (bits == 2) {
    long long two;
    __builtin_memcpy(&two, static_cast<const char *>(sixteen) + block * 4, sizeof(two));
    return _mm256_permutevar8x32_epi32(_mm256_set1_epi64x(two),
                                       _mm256_set_epi32(1, 1, 1, 1, 0, 0, 0, 0));
  }
  return broadcastWord(static_cast<const char *>(sixteen) + block * 4);
}

// 2 bits: of four sums of a vector of codes, whose halves are two blocks, sixteen positions of the
// first block and then of the second.
inline void byBlock(Codes *sums) {
  const Codes first = _mm256_permute2x128_si256(sums[0], sums[1], 0x20),
              third = _mm256_permute2x128_si256(sums[0], sums[1], 0x31);
  sums[1] = _mm256_permute2x128_si256(sums[2], sums[3], 0x20);
  sums[3] = _mm256_permute2x128_si256(sums[2], sums[3], 0x31);
  sums[0] = first;
  sums[2] = third;
}

// Stores the scores of one sum and returns them.
template <unsigned bits> inline Vec putScores(float *to, Vec scores, unsigned) {
  store(to, scores);
  return scores;
}
