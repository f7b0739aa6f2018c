// SPDX-License-Identifier: Apache-2.0
//
// The steps of attention, each in a source file of its own (docs/exactness.md E6).
#pragma once

#include "context.hpp"

namespace sparq {

// ---- query_components.cpp: the query on the parts, and where it is largest (E6.1)

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

// ---- softmax.cpp: softmax over positions spread over the parts (E6.2)

struct Scores {
  Tensor weights;   // {slots, parts, groupSize, partPositions} FLOAT: scores, then weights
  Tensor maxima;    // {slots, parts, n * groupSize} FLOAT: of n pieces of the part's
  Tensor maximum;   // {slots, parts, 6 * groupSize} FLOAT: of six workers
  Tensor blockSums; // {slots, parts, groupSize, partPositions / 64} FLOAT
  Tensor sums;      // {slots, parts, groupSize} FLOAT, Z
};
Scores createScores(const Context &context, const Waves &waves);
// inGroups: a maximum of many parts is taken in two steps, if that saves time.
void softmaxWeights(const Context &context, const Waves &waves, const Scores &scores,
                    bool inGroups);
void softmax(const Context &context, const Waves &waves, const Scores &scores); // and their sums
// Whether what is added up over all parts is brought together head by head, each on a part of its
// own, and not where it is used: less to receive, for one more exchange. Then {slots, groupSize}
// FLOAT of these parts, of which there may be several: the heads of one begin at firstHead.
bool headsApart(const Context &context);
unsigned partOfHead(const Context &context, unsigned head);
Tensor perHead(const Context &context, unsigned firstHead, const char *name);
// Adds the vertices that fold sums of blocks {groupSize, blocks} of a slot into sums {groupSize}:
// on that part, or head by head on those of partOfHead.
void addFoldSums(const Context &context, const ComputeSet &cs, unsigned slot, unsigned part,
                 unsigned firstHead, const Tensor &blockSums, const Tensor &sums);
// Fields that say which positions a part holds (codelets/segments.hpp).
Fields positionSettings(const Waves &waves, unsigned part);
// Numbers that each part of a slot has for every `unit` of its positions, ascending by position: by
// wave, then part that waves reach; then the tail, by part that has one.
//   {parts, rows, partPositions / unit} -> {rows, all of them}
Tensor ascending(const Tensor &perPart, const Waves &waves, unsigned unit);
// What the parts have that can hold positions: {parts, ...} -> {those parts, ...}.
Tensor holding(const Tensor &perPart, const Waves &waves);
// Adds the vertices that reduce each slot's partial results {n, groupSize} to `maximum` on all
// parts.
void reduceMax(const Context &context, const std::vector<Tensor> &maxima, const Tensor &maximum);

// ---- key_topk.cpp: selection of positions (E6.3)

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

// ---- gathered_attention.cpp: attention over a list of rows in streaming memory (E6.4)

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

// ---- combine.cpp: what all attention ends with (E6.5)

// The output {slots, groupSize, headDim} HALF: of SparQ; without approximate weights, over the list
// alone; of dense attention.
void combine(const Context &context, bool meanValue, const Gathered &gathered, const Scores &scores,
             const Tensor &output);
void combineList(const Context &context, const Gathered &gathered, const Tensor &output);
void combineDense(const Context &context, const Tensor &accumulator, const Scores &scores,
                  const Tensor &output);

} // namespace sparq
