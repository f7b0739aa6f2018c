// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

namespace sparq {

// scale(d) = 1 / sqrt(d), computed in double and rounded to fp32 (docs/exactness.md E4).
inline float attentionScale(unsigned headDim) {
  return static_cast<float>(1.0 / std::sqrt(double(headDim)));
}

} // namespace sparq
