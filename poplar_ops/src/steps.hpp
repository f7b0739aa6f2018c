// SPDX-License-Identifier: Apache-2.0
//
// The steps that the ops are made of, one source file each. Every function adds its compute sets
// and copies to context.program.
#pragma once

#include "context.hpp"
#include "remote_copy.hpp"

namespace sparq {

// ---- waves.cpp: rows of K or V into SRAM, in sequence
struct RowWave {
  poplar::Tensor offsets; // {slots, stride / positionsPerRow} UNSIGNED_INT
  poplar::Tensor rows;    // {slots, stride, headDim} HALF, position p on part p / length
};
RowWave createRowWave(const Context &context, const Waves &waves);
// Reads the rows of the current wave: of the keys, or, `firstRow` behind them, of the values.
void readRows(const Context &context, const Waves &waves, const RowWave &landing,
              std::size_t firstRow, const WaveIndex &wave, const char *name);

// ---- query_components.cpp
// {slots, parts, groupSize * headDim} HALF: the query on every part.
poplar::Tensor createQuery(const Context &context);
void loadQuery(const Context &context, const poplar::Tensor &query, const poplar::Tensor &perPart);
struct QueryComponents {
  poplar::Tensor query;              // {slots, parts, groupSize * headDim} HALF
  poplar::Tensor magnitudes;         // {slots, parts, headDim} FLOAT
  poplar::Tensor selected;           // {slots, headDim} UNSIGNED_INT, spread over the parts
  poplar::Tensor magnitudeSums;      // {slots, parts, groupSize} FLOAT, the last part's in use
  poplar::Tensor components;         // {slots, parts, rank} UNSIGNED_INT
  poplar::Tensor selectedQuery;      // {slots, parts, groupSize * rank} FLOAT
  poplar::Tensor inverseTemperature; // {slots, parts, groupSize} FLOAT
};
QueryComponents createQueryComponents(const Context &context, const SparqSettings &settings);
void selectComponents(const Context &context, const SparqSettings &settings,
                      const QueryComponents &q);

// ---- softmax.cpp: softmax over positions spread over the parts
struct Scores {
  poplar::Tensor weights;   // {slots, parts, groupSize, partPositions} FLOAT: scores, then weights
  poplar::Tensor maxima;    // {slots, parts, n * groupSize} FLOAT: of n pieces of the part's
  poplar::Tensor maximum;   // {slots, parts, 6 * groupSize} FLOAT: of six workers
  poplar::Tensor blockSums; // {slots, parts, groupSize, partPositions / 64} FLOAT
  poplar::Tensor sums;      // {slots, parts, groupSize} FLOAT, Z
};
Scores createScores(const Context &context, const Waves &waves);
void softmax(const Context &context, const Waves &waves, const Scores &scores);
// Fields that say which positions a part holds (codelets/segments.hpp).
std::vector<Setting> positionSettings(const Waves &waves, unsigned part);
// Numbers that each part of a slot has for every `unit` of its positions, ascending by position: by
// wave, then part that waves reach; then the tail, by part that has one.
//   {parts, rows, partPositions / unit} -> {rows, all of them}
poplar::Tensor ascending(const poplar::Tensor &perPart, const Waves &waves, unsigned unit);
// What the parts have that can hold positions: {parts, ...} -> {those parts, ...}.
poplar::Tensor holding(const poplar::Tensor &perPart, const Waves &waves);
// Adds the vertices that reduce each slot's partial results {n, groupSize} to `maximum` on all
// parts.
void reduceMax(const Context &context, const std::vector<poplar::Tensor> &maxima,
               const poplar::Tensor &maximum);

// ---- approx_scores.cpp
// The tail by position: {slots, nTailParts, headDim, ...}, each piece on the part that scores it.
struct ScoredTail {
  poplar::Tensor
      columns;          // HALF: the piece; with an index of few bits the block that is being filled
  poplar::Tensor index; // UNSIGNED_INT: with an index of few bits, the piece's records
};

// ---- key_topk.cpp
class ListRows; // stores/rows.hpp
struct Selected {
  // {slots, 2, topK} UNSIGNED_INT, ascending: rows of keys and of values, or positions, all twice; see
  // ListRows::entries. Where fewer positions are held the first one fills up.
  poplar::Tensor rows;
  poplar::Tensor
      sums; // {slots, parts, groupSize, partPositions / 64} FLOAT: approximate weights of
            // the selected positions, by block; invalid where positions have none
};
Selected selectPositions(const Context &context, const SparqSettings &settings, const Waves &waves,
                         const Scores &scores, const ListRows &entries);
// The last nLocal positions, and of the others those with the largest keys {slots, parts, partPositions}
// UNSIGNED_INT, integers below 2^30, or `wide` ones below 2^31. Without sums.
Selected selectByKeys(const Context &context, const WindowSettings &settings, const Waves &waves,
                      const poplar::Tensor &keys, bool wide, const ListRows &entries);

// ---- weighted_values.cpp
// Adds the vertices of one compute set: values {nRows, headDim or a slice}, weights flat, partials
// {blocks, groupSize, width}.
struct WeightedSum {
  unsigned begin, stride, limit;     // which entries the rows are: see the codelet
  unsigned headStride, weightStride; // where their weights are
};
void addWeightedValues(const Context &context, const poplar::ComputeSet &cs, unsigned slot,
                       unsigned part, const WaveIndex &wave, const WeightedSum &sum,
                       const poplar::Tensor &values, const poplar::Tensor &weights,
                       const poplar::Tensor &partials);
// Folds partials {slots, blocks, groupSize, headDim} into accumulator {slots, groupSize, headDim}.
void foldBlocks(const Context &context, const WaveIndex &wave, const poplar::Tensor &partials,
                const poplar::Tensor &accumulator);
// {slots, groupSize, headDim}, components spread over the parts as in Placement.
poplar::Tensor createByComponent(const Context &context, const poplar::Type &type,
                                 const char *name);

// ---- gathered_attention.cpp
struct Gathered {
  poplar::Tensor partials;   // {slots, blocks of the list, groupSize, headDim} FLOAT
  poplar::Tensor sums;       // {slots, groupSize} FLOAT, E
  poplar::Tensor approxSums; // {slots, groupSize} FLOAT, W; holds nothing without Selected::sums
};
Gathered gatheredAttention(const Context &context, const Waves &waves, const QueryComponents &q,
                           const Selected &selected);

// ---- combine.cpp: {slots, groupSize, headDim} HALF
void combine(const Context &context, bool meanValue, const Gathered &gathered, const Scores &scores,
             const poplar::Tensor &output);
// Without approximate weights: over the list alone.
void combineList(const Context &context, const Gathered &gathered, const poplar::Tensor &output);
void combineDense(const Context &context, const poplar::Tensor &accumulator, const Scores &scores,
                  const poplar::Tensor &output);

} // namespace sparq
