// SPDX-License-Identifier: Apache-2.0
//
// The query on the parts, and where it is largest (docs/exactness.md E6.1).
#pragma once

#include "context.hpp"

namespace sparq {

// {slots, parts, groupSize * headDim} HALF: the query on every part.
Tensor createQuery(const Context &context);
// {slots, parts, groupSize * headDim}: of the op's query what goes to each part.
Tensor queryOfParts(const Context &context, const Tensor &query);
// That, and the lengths.
void loadQuery(const Context &context, const Tensor &query, const Tensor &perPart);
struct QueryComponents {
  Tensor query;              // {slots, parts, groupSize * headDim} HALF
  Tensor magnitudes;         // {slots, parts, headDim} FLOAT
  Tensor selected;           // {slots, indexDim} UNSIGNED_INT, spread over the parts
  Tensor magnitudeSums;      // {slots, parts, groupSize} FLOAT, the last part's in use
  Tensor components;         // {slots, parts, rank} UNSIGNED_INT
  Tensor selectedQuery;      // {slots, parts, groupSize * rank} FLOAT
  Tensor inverseTemperature; // {slots, parts, groupSize} FLOAT
};
// everywhere: with magnitudes and temperatures of each part's own.
QueryComponents createQueryComponents(const Context &context, const SparqSettings &settings,
                                      bool everywhere = true);
void selectComponents(const Context &context, const SparqSettings &settings,
                      const QueryComponents &q);
// Its second step, from the magnitudes: masks of the `rank` components where these are largest.
void rankComponents(const Context &context, const SparqSettings &settings,
                    const QueryComponents &q);

} // namespace sparq
