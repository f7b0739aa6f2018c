// SPDX-License-Identifier: Apache-2.0
//
// The output {slots, groupSize, headDim} HALF.
#pragma once

#include "gathered_attention.hpp"

namespace sparq {

void combine(const Context &context, bool meanValue, const Gathered &gathered, const Scores &scores,
             const Tensor &output);
// Without approximate weights: over the list alone.
void combineList(const Context &context, const Gathered &gathered, const Tensor &output);
void combineDense(const Context &context, const Tensor &accumulator, const Scores &scores,
                  const Tensor &output);

} // namespace sparq
