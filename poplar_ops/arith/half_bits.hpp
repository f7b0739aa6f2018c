// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

namespace sparq {

// fp16 bit pattern to fp32, exact; for host code. (2^112 moves the exponent bias from 15 to 127,
// denormals included; infinity and NaN are not needed here.)
inline float widen(std::uint16_t bits) {
  const std::uint32_t magnitude = std::uint32_t(bits & 0x7fffu) << 13;
  float f;
  std::memcpy(&f, &magnitude, sizeof(f));
  f *= 0x1p112f;
  return bits & 0x8000u ? -f : f;
}

// fp32 to fp16 bits, nearest, ties to even; for magnitudes up to 65504, in host code.
inline std::uint16_t narrow(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude < 0x38800000u) {
    // Below 2^-14, a denormal fp16: a multiple of 2^-24, which is the ulp of [0.5, 1).
    float small;
    std::memcpy(&small, &magnitude, sizeof(small));
    small += 0.5f;
    std::memcpy(&magnitude, &small, sizeof(magnitude));
    return static_cast<std::uint16_t>(sign | (magnitude - 0x3f000000u));
  }
  return static_cast<std::uint16_t>(
      sign | ((magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13));
}

} // namespace sparq
