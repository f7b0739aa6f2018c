// SPDX-License-Identifier: Apache-2.0
//
// Loads and stores of vectors of fp32, and of fp16 widened to fp32: the only arithmetic with a
// branch on the target. `half` is declared before this is included: by the compiler of an IPU, else
// by poplar/HalfFloat.hpp. A test runs the branch for the IPU too, where Clang is there (its __fp16
// is the type that the IPU's compiler calls half).
#pragma once

namespace sparq {

// V consecutive fp32 values.
template <class V> inline V load(const float *from) {
  V lanes;
  __builtin_memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}
template <class V> inline void store(float *to, const V &lanes) {
  __builtin_memcpy(to, &lanes, sizeof(lanes));
}

// V consecutive fp16 values, widened (exact).
template <class V> inline V load(const half *from) {
  constexpr unsigned n = sizeof(V) / sizeof(float);
#ifdef __IPU__
  typedef half Halves __attribute__((vector_size(n * sizeof(half)), aligned(4)));
  return __builtin_convertvector(*reinterpret_cast<const Halves *>(from), V);
#else
  float wide[n];
  for (unsigned i = 0; i != n; ++i)
    wide[i] = static_cast<float>(from[i]);
  return load<V>(wide);
#endif
}

} // namespace sparq
