// SPDX-License-Identifier: Apache-2.0
//
// Vectors of codes for dot_codes_x86.hpp: AVX-512 with VNNI.
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

inline Codes maskBytes(Codes x, int mask) {
  return _mm512_and_si512(x, _mm512_set1_epi8(static_cast<char>(mask)));
}
// The codes of each byte, such that takeApart makes of their sums those of the codes. Sums of 32
// bits have room for whole bytes: each code comes with those above it in its byte, whose sums are
// subtracted at the end. That is one AND for a vector of codes, and none for the first.
template <unsigned bits> inline void codesOf(Codes x, Codes *codes) {
  for (unsigned n = 0; n < codesOfByte(bits); ++n)
    codes[n] = n == 0 ? x : maskBytes(x, 0xFF << (bits * n));
}
template <unsigned bits> inline void takeApart(Codes *sums) {
  for (unsigned n = 0; n < codesOfByte(bits); ++n) {
    if (n + 1 < codesOfByte(bits))
      sums[n] = _mm512_sub_epi32(sums[n], sums[n + 1]);
    if (n > 0)
      sums[n] = _mm512_srai_epi32(sums[n], bits * n);
  }
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

inline Codes broadcastWord(const void *from) {
  int word;
  __builtin_memcpy(&word, from, sizeof(word));
  return _mm512_set1_epi32(word);
}

// Of sixteen numbers of 32 bits, by block: those of the blocks that a vector of codes covers.
template <unsigned bits> inline Codes spread(const void *sixteen, unsigned block) {
  if (bits == 8)
    return broadcastWord(static_cast<const char *>(sixteen) + block * 4);
  const Codes behind = bits == 4 ? _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0)
                                 : _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
  return _mm512_permutexvar_epi32(
      _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(block)), behind),
      _mm512_loadu_si512(sixteen));
}

// 2 bits: of four sums of a vector of codes, whose quarters are four blocks, sixteen positions of
// each block.
inline void byBlock(Codes *sums) {
  const Codes ab = _mm512_shuffle_i32x4(sums[0], sums[1], 0x44),
              cd = _mm512_shuffle_i32x4(sums[2], sums[3], 0x44),
              ef = _mm512_shuffle_i32x4(sums[0], sums[1], 0xEE),
              gh = _mm512_shuffle_i32x4(sums[2], sums[3], 0xEE);
  sums[0] = _mm512_shuffle_i32x4(ab, cd, 0x88);
  sums[1] = _mm512_shuffle_i32x4(ab, cd, 0xDD);
  sums[2] = _mm512_shuffle_i32x4(ef, gh, 0x88);
  sums[3] = _mm512_shuffle_i32x4(ef, gh, 0xDD);
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
