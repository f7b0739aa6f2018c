// SPDX-License-Identifier: Apache-2.0
//
// Numbers of bfloat16: the upper half of fp32.
#pragma once

#include <cstdint>
#include <cstring>

namespace sparq::cpu {

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

} // namespace sparq::cpu
