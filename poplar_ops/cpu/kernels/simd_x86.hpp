// SPDX-License-Identifier: Apache-2.0
//
// What AVX-512 and AVX2 do alike: the end of a lane sum. Included by both inside their namespaces.
#pragma once

#include "vectors.hpp"

// Lanes (0+4, 1+5, 2+6, 3+7).
inline __m128 foldHalves(Lanes x) {
  return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
}

// The tree of a lane sum for four of them at once: what `treeSum` of arith.hpp does to one.
inline void treeSums(const Lanes lanes[4], float *to) {
  const __m128 x0 = foldHalves(lanes[0]), x1 = foldHalves(lanes[1]);
  const __m128 x2 = foldHalves(lanes[2]), x3 = foldHalves(lanes[3]);
  const __m128 a = _mm_add_ps(_mm_unpacklo_ps(x0, x1), _mm_unpackhi_ps(x0, x1));
  const __m128 b = _mm_add_ps(_mm_unpacklo_ps(x2, x3), _mm_unpackhi_ps(x2, x3));
  _mm_storeu_ps(to, _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a)));
}
