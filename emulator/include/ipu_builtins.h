// SPDX-License-Identifier: Apache-2.0
#pragma once

// Of the functions built into the IPU's compiler, those of vectors. popc knows the others without a
// header.

#include <ipu_vector_math>
#include <ipudef.h>

#ifdef __POPC__
// Two numbers about 0 with deviation 1: each the sum of twelve even ones, less 6. A device's have
// other bits.
inline float2 __builtin_ipu_f32v2grand() {
  float2 sum = {0, 0};
  for (int i = 0; i < 12; ++i)
    for (int k = 0; k < 2; ++k)
      sum[k] += __builtin_ipu_urand_f32();
  return sum;
}
inline half2 __builtin_ipu_f16v2grand() {
  const float2 of = __builtin_ipu_f32v2grand();
  return half2{static_cast<half>(of[0]), static_cast<half>(of[1])};
}
// GCC gives names that begin so no mangled symbol: two of these, or one and that of a scalar, would
// be one symbol.
#define SPARQ_BUILTIN_OF_VECTORS template <class V> __attribute__((always_inline)) inline V
SPARQ_BUILTIN_OF_VECTORS __builtin_ipu_max(const V &a, const V &b) {
  return ipu::vector_math::ApplyByElement<V>::two(static_cast<float (*)(float, float)>(std::fmax),
                                                  a, b);
}
SPARQ_BUILTIN_OF_VECTORS __builtin_ipu_min(const V &a, const V &b) {
  return ipu::vector_math::ApplyByElement<V>::two(static_cast<float (*)(float, float)>(std::fmin),
                                                  a, b);
}
#undef SPARQ_BUILTIN_OF_VECTORS
#endif
