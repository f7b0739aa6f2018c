// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stores/hot_buffer.hpp"

namespace sparq {

// Brings the selected positions {slots, topK} into the buffer; where they are there, plus 1,
// {slots, topK} UNSIGNED_INT.
poplar::Tensor makeHot(const Context &context, const HotBuffer &buffer,
                       const poplar::Tensor &positions);

} // namespace sparq
