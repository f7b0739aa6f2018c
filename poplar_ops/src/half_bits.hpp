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

} // namespace sparq
