// SPDX-License-Identifier: Apache-2.0
//
// Numbers of the types that models have.
#pragma once

#include "bfloat16.hpp"
#include "kernels/table.hpp"

#include <cstring>

namespace sparq::cpu {

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
