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
  Tensor magnitudes;         // {slots, indexDim} FLOAT, spread over the parts
  Tensor selected;           // {slots, indexDim} UNSIGNED_INT, spread over the parts
  Tensor magnitudeSums;      // {slots, parts, groupSize} FLOAT, the last part's in use
  Tensor components;         // {slots, parts, rank} UNSIGNED_INT
  Tensor columns;            // {slots, parts, rank} UNSIGNED_INT: where their columns begin
  Tensor selectedQuery;      // {slots, parts, groupSize * rank} FLOAT
  Tensor inverseTemperature; // {slots, groupSize} FLOAT on the last part
};
QueryComponents createQueryComponents(const Context &context, const SparqSettings &settings);
// The components, whose columns are columnStep apart, and the lengths to the parts; returns the
// last compute set.
ComputeSet selectComponents(const Context &context, const SparqSettings &settings,
                            const QueryComponents &q, unsigned columnStep);
// Adds the vertices that make the inverse temperatures, to that compute set or a later one.
void addTemperatures(const Context &context, const ComputeSet &cs, const QueryComponents &q);

} // namespace sparq
