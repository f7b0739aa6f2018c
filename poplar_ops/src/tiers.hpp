// SPDX-License-Identifier: Apache-2.0
//
// A cache in three tiers: the key index in SRAM, hot rows in SRAM, all rows in streaming memory.
#pragma once

#include "steps.hpp"
#include <functional>

namespace sparq {

// ---- tiered_cache.cpp: what a cache has of its own
// Positions whose records a part has: the parts of a slot take them in order.
unsigned residentLength(const Plan &plan);
// What index and hot rows take on a part, of every task that it works on in turn.
std::uint64_t tieredCacheBytes(const Plan &plan);
// Allocates cache.index and cache.hot.
void addTiers(poplar::Graph &graph, Cache &cache);
// The records of blocks that an append has filled, from the tail to the parts that keep them; full
// {nTasks}.
poplar::program::Sequence storeRecords(poplar::Graph &graph, const Cache &cache,
                                       const poplar::Tensor &full, const poplar::DebugContext &dc);
// A position that is appended is hot: key, value {nTasks, headDim}, active {nTasks}. To be called before
// lengths grow.
void insertNewest(poplar::Graph &graph, const Cache &cache, const poplar::Tensor &key,
                  const poplar::Tensor &value, const poplar::Tensor &active,
                  poplar::program::Sequence &program, const poplar::DebugContext &dc);

// ---- row_codes.cpp
// Rows as a cache of 8 bits holds them (docs/exactness.md E10).
struct RoundedRows {
  poplar::Tensor keys, values; // {n, headDim} HALF
  poplar::Tensor rows;         // {n, layout.rowElements()} HALF: what streaming memory gets
};
// Which tile rounds component `component` of row `row`; components of a value follow those of its key.
using TileOfRow = std::function<unsigned(unsigned row, unsigned component)>;
// Working tensors for rows that are rounded, in pieces of `width` components: a multiple of 32, or
// headDim.
class RowRounder {
public:
  RowRounder(poplar::Graph &graph, const CacheLayout &layout, unsigned nRows, unsigned width,
             const TileOfRow &tileOf, const poplar::DebugContext &dc);
  struct Range {
    unsigned begin, end;
  };
  // Rounds keys, values {n, headDim} HALF in the places of these rows.
  RoundedRows round(const std::vector<Range> &ranges, const poplar::Tensor &keys,
                    const poplar::Tensor &values, poplar::program::Sequence &program,
                    const poplar::DebugContext &dc) const;

private:
  struct Piece {
    bool ofValues;
    unsigned first, n;                     // components
    poplar::Tensor numbers, codes, scales; // {nRows, ...} HALF
    std::vector<unsigned> tiles;           // by row
  };
  poplar::Graph &graph;
  const CacheLayout layout;
  std::vector<Piece> pieces; // of keys, then of values
};

// ---- resident_index.cpp
// Whether codes are taken out of their words once for all heads of a group (codelets/code_products.hpp).
bool scoredByGroup(const Plan &plan);
// Scores of all positions: of full blocks from the index, of the others from the tail.
void residentScores(const Context &context, const SparqSettings &settings, const Waves &waves,
                    const QueryComponents &q, const Scores &scores);

// ---- hot_rows.cpp
// Brings the selected positions {slots, topK} into the buffer of hot rows; their slots, plus 1, {slots,
// topK} UNSIGNED_INT.
poplar::Tensor makeHot(const Context &context, const poplar::Tensor &positions);

// ---- hot_attention.cpp
// Attention over these slots; `selected` as selectPositions gives it.
Gathered hotAttention(const Context &context, const Waves &waves, const QueryComponents &q,
                      const Selected &selected, const poplar::Tensor &slots);

} // namespace sparq
