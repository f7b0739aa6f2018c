// SPDX-License-Identifier: Apache-2.0
//
// Numbers of the types that models have.
#pragma once

#include "kernels/table.hpp"

#include <cstdint>
#include <cstring>

namespace sparq::cpu {

// Numbers of bfloat16: the upper half of fp32.

inline float widened(std::uint16_t bits) {
  const std::uint32_t word = std::uint32_t(bits) << 16;
  float x;
  std::memcpy(&x, &word, sizeof(x));
  return x;
}

// To nearest, ties to even; for what fp32 makes of bfloat16 (a NaN of theirs stays one).
inline std::uint16_t narrowed(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

enum class Float { float32, bfloat16, float16 };

inline std::size_t bytesOf(Float type) { return type == Float::float32 ? 4 : 2; }

// n numbers of the type to fp32, exactly.
inline void widenNumbers(const Kernels &kernels, Float type, const void *from, std::size_t n,
                         float *to) {
  if (type == Float::float32) {
    std::memcpy(to, from, n * sizeof(float));
    return;
  }
  const auto *const bits = static_cast<const std::uint16_t *>(from);
  if (type == Float::float16) {
    kernels.widen(bits, to, n);
    return;
  }
  for (std::size_t i = 0; i < n; ++i)
    to[i] = widened(bits[i]);
}

} // namespace sparq::cpu
