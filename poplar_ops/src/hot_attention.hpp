// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stores/hot_buffer.hpp"

namespace sparq {

// Attention over rows in these places {slots, topK} of the buffer, plus 1; `selected` as
// selectPositions gives it.
Gathered hotAttention(const Context &context, const HotBuffer &buffer, const Waves &waves,
                      const QueryComponents &q, const Selected &selected,
                      const poplar::Tensor &slots);

} // namespace sparq
