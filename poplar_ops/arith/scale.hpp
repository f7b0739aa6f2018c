// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>

namespace sparq {

// scale(d) = 1 / sqrt(d), computed in double and rounded once to fp32 (docs/exactness.md E4). The
// device program and the CPU kernels both take it from here.
inline float attentionScale(std::size_t headDim) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(headDim)));
}

} // namespace sparq
