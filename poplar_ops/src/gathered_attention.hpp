// SPDX-License-Identifier: Apache-2.0
//
// Selection of positions, attention over a list of rows in streaming memory (docs/exactness.md E6.3
// and E6.4), and what all attention ends with.
#pragma once

#include "query_components.hpp"
#include "softmax.hpp"

namespace sparq {

// Selection of positions (docs/exactness.md E6.3).

class ListRows; // stores/rows.hpp
struct Selected {
  // {slots, 2, topK} UNSIGNED_INT, ascending: rows of keys and of values, or positions, all twice;
  // see ListRows::entries. Where fewer positions are held the first one fills up.
  Tensor rows;
  Tensor sums; // {slots, parts, groupSize, partPositions / 64} FLOAT: approximate weights of
               // the selected positions, by block; invalid where positions have none
};
Selected selectPositions(const Context &context, const SparqSettings &settings, const Waves &waves,
                         const Scores &scores, const ListRows &entries);
// The last nLocal positions, and of the others those with the largest keys {slots, parts,
// partPositions} UNSIGNED_INT, integers below 2^30, or `wide` ones below 2^31. Without sums.
Selected selectByKeys(const Context &context, const WindowSettings &settings, const Waves &waves,
                      const Tensor &keys, bool wide, const ListRows &entries);

struct Gathered {
  Tensor partials;   // {slots, blocks of the list, groupSize, headDim} FLOAT
  Tensor sums;       // {slots, groupSize} FLOAT, E
  Tensor approxSums; // {slots, groupSize} FLOAT, W; holds nothing without Selected::sums
};
Gathered gatheredAttention(const Context &context, const Waves &waves, const QueryComponents &q,
                           const Selected &selected);

// Adds the vertices of one compute set that sum values by weight, block by block: values {nRows,
// headDim or a slice}, weights flat, partials {blocks, groupSize, width}.
struct WeightedSum {
  unsigned begin, stride, limit;     // which entries the rows are: see the codelet
  unsigned headStride, weightStride; // where their weights are
};
void addWeightedValues(const Context &context, const ComputeSet &cs, unsigned slot, unsigned part,
                       const WaveIndex &wave, const WeightedSum &sum, const Tensor &values,
                       const Tensor &weights, const Tensor &partials);

// The output {slots, groupSize, headDim} HALF: of SparQ; without approximate weights, over the list
// alone; of dense attention.
void combine(const Context &context, bool meanValue, const Gathered &gathered, const Scores &scores,
             const Tensor &output);
void combineList(const Context &context, const Gathered &gathered, const Tensor &output);
void combineDense(const Context &context, const Tensor &accumulator, const Scores &scores,
                  const Tensor &output);

} // namespace sparq
