// SPDX-License-Identifier: Apache-2.0
//
// Loads and stores of vectors of fp32, and of fp16 widened to fp32. `half` is declared before this
// is included: by the compiler of an IPU, else by poplar/HalfFloat.hpp. A test runs the branch for
// the IPU too, if Clang is installed (its __fp16 is the type that the IPU's compiler calls half).
//
// Addresses are multiples of 8, or of the vector's size where that is less. It is said to the
// compiler: of an access of 64 bits at an address that it knows to be a multiple of 4 it makes two.
#pragma once

namespace sparq {

// The address of n bytes, with what is known of it. A device stops at an access that breaks the
// promise; an emulated one does too.
template <unsigned n, class T> inline T *aligned(T *at) {
  constexpr unsigned multiple = n < 8 ? n : 8;
#ifndef __IPU__
  if (reinterpret_cast<__UINTPTR_TYPE__>(at) % multiple != 0)
    __builtin_trap();
#endif
  return static_cast<T *>(__builtin_assume_aligned(at, multiple));
}

// V consecutive fp32 values.
template <class V> inline V load(const float *from) {
  V lanes;
  __builtin_memcpy(&lanes, aligned<sizeof(V)>(from), sizeof(lanes));
  return lanes;
}
// The same at any multiple of 4, with twice the accesses.
template <class V> inline V loadWords(const float *from) {
  V lanes;
  __builtin_memcpy(&lanes, aligned<sizeof(float)>(from), sizeof(lanes));
  return lanes;
}
template <class V> inline void store(float *to, const V &lanes) {
  __builtin_memcpy(aligned<sizeof(V)>(to), &lanes, sizeof(lanes));
}

// V consecutive fp16 values, widened (exact); and V narrowed to the nearest, ties to even, for
// magnitudes up to 65504.
#ifdef __IPU__
template <class V> struct HalvesOf {
  typedef half type __attribute__((vector_size(sizeof(V) / 2)));
};
template <class V> inline V load(const half *from) {
  typename HalvesOf<V>::type halves;
  __builtin_memcpy(&halves, aligned<sizeof(halves)>(from), sizeof(halves));
  return __builtin_convertvector(halves, V);
}
template <class V> inline void store(half *to, const V &lanes) {
  const auto halves = __builtin_convertvector(lanes, typename HalvesOf<V>::type);
  __builtin_memcpy(aligned<sizeof(halves)>(to), &halves, sizeof(halves));
}
#else
template <class V> inline V load(const half *from) {
  constexpr unsigned n = sizeof(V) / sizeof(float);
  const half *const halves = aligned<sizeof(V) / 2>(from);
  V lanes;
  for (unsigned i = 0; i != n; ++i)
    lanes[i] = static_cast<float>(halves[i]);
  return lanes;
}
template <class V> inline void store(half *to, const V &lanes) {
  constexpr unsigned n = sizeof(V) / sizeof(float);
  half *const halves = aligned<sizeof(V) / 2>(to);
  for (unsigned i = 0; i != n; ++i)
    halves[i] = static_cast<half>(lanes[i]);
}
#endif

} // namespace sparq
