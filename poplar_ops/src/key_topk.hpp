// SPDX-License-Identifier: Apache-2.0
//
// Selection of positions (docs/exactness.md E6.3).
#pragma once

#include "softmax.hpp"

namespace sparq {

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

} // namespace sparq
