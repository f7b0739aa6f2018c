// SPDX-License-Identifier: Apache-2.0
//
// Sums of values by weight, block by block.
#pragma once

#include "context.hpp"

namespace sparq {

// Adds the vertices of one compute set: values {nRows, headDim or a slice}, weights flat, partials
// {blocks, groupSize, width}.
struct WeightedSum {
  unsigned begin, stride, limit;     // which entries the rows are: see the codelet
  unsigned headStride, weightStride; // where their weights are
};
void addWeightedValues(const Context &context, const ComputeSet &cs, unsigned slot, unsigned part,
                       const WaveIndex &wave, const WeightedSum &sum, const Tensor &values,
                       const Tensor &weights, const Tensor &partials);
// Folds partials {slots, blocks, groupSize, headDim} into accumulator {slots, groupSize, headDim}.
void foldBlocks(const Context &context, const WaveIndex &wave, const Tensor &partials,
                const Tensor &accumulator);
// {slots, groupSize, headDim}, components spread over the parts as in Placement.
Tensor createByComponent(const Context &context, const Type &type, const char *name);

} // namespace sparq
