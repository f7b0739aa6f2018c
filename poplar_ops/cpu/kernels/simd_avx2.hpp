// SPDX-License-Identifier: Apache-2.0
//
// The vectors of AVX2 with F16C and FMA: 8 lanes. Included by avx2.cpp inside its namespace.
#pragma once

#include "vectors.hpp"

using Vec = float __attribute__((vector_size(32)));
using BitsVec = unsigned __attribute__((vector_size(32)));
using IntVec = int __attribute__((vector_size(32)));
using Lanes = Vec;
constexpr unsigned severalVectors = 2; // that the softmax computes with side by side
constexpr unsigned width = 8;

inline Vec load(const float *from) { return _mm256_loadu_ps(from); }
inline void store(float *to, Vec x) { _mm256_storeu_ps(to, x); }
inline Vec loadHalf(const Half *from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
}
inline Vec loadBytes(const unsigned char *from) { // signed ones
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(from))));
}
inline void storeHalf(Half *to, Vec x) {
  _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline Vec broadcast(float x) { return _mm256_set1_ps(x); }
inline Vec maximum(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec squareRoot(Vec x) { return _mm256_sqrt_ps(x); }
inline float largestOf(Vec x) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline int sumOf(IntVec x) {
  const __m256i all = bitcast<__m256i>(x);
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  sum = _mm_hadd_epi32(sum, sum);
  return _mm_cvtsi128_si32(_mm_hadd_epi32(sum, sum));
}
// a * b + c where a and b are fp16 values: the product is exact, so fused and separate are one
// result (contract E1).
inline Vec addExactProduct(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }

inline Lanes loadLanes(const float *from) { return load(from); }
inline void storeLanes(float *to, Lanes x) { store(to, x); }
template <class Row> inline Lanes lanesOf(const Row &row, unsigned c) { return row.vec(c); }

// Numbers of a list that addToLanes takes at a time.
constexpr unsigned lanesStep = 8;
inline Lanes addToLanes(Lanes sum, const Vec *x) { return sum + x[0]; }
inline Lanes largestLanes(Vec x) { return x; } // lanes with the same largest number

#include "simd_x86.hpp"

// Bit j: x[j] >= threshold, of 16 numbers.
inline unsigned atLeast(const std::int32_t *x, std::int32_t threshold) {
  const __m256i below = _mm256_set1_epi32(threshold - 1); // threshold >= 0: no overflow
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(x));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(x + 8));
  const int a = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(low, below)));
  const int b = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(high, below)));
  return static_cast<unsigned>(a | b << 8);
}
