// SPDX-License-Identifier: Apache-2.0
//
// What AVX-512 and AVX2 do alike: sums and maxima of the lanes of four vectors at once. Included by
// both inside their namespaces.
#pragma once

#include "vectors.hpp"

// Lanes j and j + 4, then j and j + 2, then 0 and 1.
template <typename Operation>
inline void foldLanes(const Lanes lanes[4], float *to, Operation combine) {
  const auto halves = [&](Lanes x) {
    return combine(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  };
  const __m128 x0 = halves(lanes[0]), x1 = halves(lanes[1]);
  const __m128 x2 = halves(lanes[2]), x3 = halves(lanes[3]);
  const __m128 a = combine(_mm_unpacklo_ps(x0, x1), _mm_unpackhi_ps(x0, x1));
  const __m128 b = combine(_mm_unpacklo_ps(x2, x3), _mm_unpackhi_ps(x2, x3));
  _mm_storeu_ps(to, combine(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a)));
}
// What `treeSum` of arith.hpp does to one.
inline void treeSums(const Lanes lanes[4], float *to) {
  foldLanes(lanes, to, [](__m128 a, __m128 b) { return _mm_add_ps(a, b); });
}
inline void largestOfFour(const Lanes lanes[4], float *to) {
  foldLanes(lanes, to, [](__m128 a, __m128 b) { return _mm_max_ps(a, b); });
}
