// SPDX-License-Identifier: Apache-2.0
//
// Attention over a list of rows in streaming memory (docs/exactness.md E6.4).
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

} // namespace sparq
