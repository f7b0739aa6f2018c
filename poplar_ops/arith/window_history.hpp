// SPDX-License-Identifier: Apache-2.0
//
// A share of attention (contract E11): one text for codelets and for the CPU kernels.
#pragma once

#include "key_index.hpp"

namespace sparq {

// All of one head's attention, in units of a share.
constexpr float shareUnits = 65536.0f;

// What a position with that softmax weight got, of weights whose sum is `sum`. The product is
// exact.
inline unsigned shareOf(float weight, float sum) {
  return static_cast<unsigned>(roundToInteger(weight / sum * shareUnits));
}

} // namespace sparq
