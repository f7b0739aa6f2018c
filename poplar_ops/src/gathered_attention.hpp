// SPDX-License-Identifier: Apache-2.0
//
// Attention over a list of rows in streaming memory (docs/exactness.md E6.4).
#pragma once

#include "key_topk.hpp"
#include "query_components.hpp"

namespace sparq {

struct Gathered {
  Tensor partials;   // {slots, blocks of the list, groupSize, headDim} FLOAT
  Tensor sums;       // {slots, groupSize} FLOAT, E
  Tensor approxSums; // {slots, groupSize} FLOAT, W; holds nothing without Selected::sums
};
Gathered gatheredAttention(const Context &context, const Waves &waves, const QueryComponents &q,
                           const Selected &selected);

} // namespace sparq
