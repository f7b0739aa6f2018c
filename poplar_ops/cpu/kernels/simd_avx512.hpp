// SPDX-License-Identifier: Apache-2.0
//
// The vectors of AVX-512 (F, BW, DQ, VL) with F16C and FMA: 16 lanes, and 8 for lane sums. Included
// by avx512vnni.cpp inside its namespace.
#pragma once

#include "vectors.hpp"

using Vec = float __attribute__((vector_size(64)));
using BitsVec = unsigned __attribute__((vector_size(64)));
using IntVec = int __attribute__((vector_size(64)));
using Lanes = float __attribute__((vector_size(32)));
constexpr unsigned severalVectors = 4; // that the softmax computes with side by side
constexpr unsigned width = 16;
#define SPARQ_WIDE_VECTORS

inline Vec load(const float *from) { return _mm512_loadu_ps(from); }
inline void store(float *to, Vec x) { _mm512_storeu_ps(to, x); }
inline Vec loadHalf(const Half *from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
}
inline Vec loadBytes(const unsigned char *from) { // signed ones
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from))));
}
inline void storeHalf(Half *to, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(to),
                      _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline Vec broadcast(float x) { return _mm512_set1_ps(x); }
inline Vec maximum(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec squareRoot(Vec x) { return _mm512_sqrt_ps(x); }
inline float largestOf(Vec x) { return _mm512_reduce_max_ps(x); }
inline int sumOf(IntVec x) { return _mm512_reduce_add_epi32(bitcast<__m512i>(x)); }
// a * b + c where a and b are fp16 values: the product is exact, so fused and separate are one
// result (contract E1).
inline Vec addExactProduct(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }

inline Lanes loadLanes(const float *from) { return _mm256_loadu_ps(from); }
inline void storeLanes(float *to, Lanes x) { _mm256_storeu_ps(to, x); }
inline Lanes loadHalfLanes(const Half *from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
}
inline Lanes addExactProduct(Lanes a, Lanes b, Lanes c) { return _mm256_fmadd_ps(a, b, c); }
// Lanes of two things side by side.
inline Vec loadLanesTwice(const float *from) {
  return _mm512_broadcast_f32x8(_mm256_loadu_ps(from));
}
inline Vec firstHalves(Vec a, Vec b) { return _mm512_shuffle_f32x4(a, b, 0x44); }
inline Vec secondHalves(Vec a, Vec b) { return _mm512_shuffle_f32x4(a, b, 0xEE); }
inline Lanes firstLanes(Vec x) { return _mm512_castps512_ps256(x); }
inline Lanes secondLanes(Vec x) { return _mm512_extractf32x8_ps(x, 1); }
// Eight components of a row, of which the next or the last eight are read too.
template <class Row> inline Lanes lanesOf(const Row &row, unsigned c) {
  return c % width ? secondLanes(row.vec(c - nLanes)) : firstLanes(row.vec(c));
}

inline Lanes maximum(Lanes a, Lanes b) { return _mm256_max_ps(a, b); }

// p * 2^n, the weight of x, or 0 where x is below the least. A weight is no denormal, so this is
// the sum of bits that the other instruction sets take, with an operation less.
inline Vec weightOf(Vec x, float least, Vec p, Vec, Vec n) {
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, broadcast(least), _CMP_NLT_UQ), p, n);
}

// Numbers of a list that addToLanes takes at a time.
constexpr unsigned lanesStep = 16;
inline Lanes addToLanes(Lanes sum, const Vec *x) {
  return (sum + _mm512_castps512_ps256(x[0])) + _mm512_extractf32x8_ps(x[0], 1);
}
// Lanes with the same largest number.
inline Lanes largestLanes(Vec x) { return maximum(firstLanes(x), secondLanes(x)); }

// The same for two blocks, which have half a vector each.
inline Vec addToTwoLanes(Vec sum, Vec x, Vec y) {
  return (sum + firstHalves(x, y)) + secondHalves(x, y);
}

#include "simd_x86.hpp"

// Bit j: x[j] >= threshold, of 16 numbers.
inline unsigned atLeast(const std::int32_t *x, std::int32_t threshold) {
  return _mm512_cmpge_epi32_mask(_mm512_loadu_si512(x), _mm512_set1_epi32(threshold));
}
// The indices (the first being `index`) of those of 16 numbers that reach the threshold; returns
// how many, and may write 16.
inline unsigned appendAtLeast(const std::int32_t *x, std::int32_t threshold, std::uint32_t index,
                              std::uint32_t *to) {
  const __m512i each = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const unsigned mask = atLeast(x, threshold);
  const __m512i all = _mm512_add_epi32(each, _mm512_set1_epi32(static_cast<int>(index)));
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), all));
  return static_cast<unsigned>(__builtin_popcount(mask));
}
