// SPDX-License-Identifier: Apache-2.0
//
// What window attention selects by (docs/exactness.md E11), as a graph sees it.
#pragma once

#include "steps.hpp"

namespace sparq {

// Allocates cache.history, with nothing remembered.
void addHistory(poplar::Graph &graph, Cache &cache);

// The history of one layer, for the host: with one layer the cache's own tensors, else others, and programs
// that bring the layer that was loaded last there and back.
struct HistoryOfLayer {
  poplar::Tensor rows; // {batch, nPieces, nRecent * length}
  poplar::Tensor sums; // {batch, nPieces, length}
  poplar::Tensor step; // {batch, nPieces}
  poplar::program::Sequence load, store;
};
HistoryOfLayer historyOfLayer(poplar::Graph &graph, const Cache &cache);

// One attention program's use of it: in every round `keys`, then `take`; behind them `addStep`.
class HistoryStep {
public:
  // Loads the sums of the layer that is being worked on.
  HistoryStep(poplar::Graph &graph, const Cache &cache, unsigned topK,
              poplar::program::Sequence &program, const poplar::DebugContext &dc);
  // The sums by position, on the parts of each slot: {slots, parts, partPositions}.
  poplar::Tensor keys(const Context &context, const Waves &waves) const;
  // Of a round: how much attention each entry of the list got. `list`: the context of what attends to it.
  void take(const Context &list, const Selected &selected, const Gathered &gathered);
  // The step of all rounds into the history.
  void addStep();

private:
  poplar::Graph &graph;
  const Cache &cache;
  const Placement &p;
  const unsigned topK, rowsPerPart;
  poplar::program::Sequence &program;
  const poplar::DebugContext dc;
  poplar::Tensor sums;   // {batch, positions}
  poplar::Tensor lists;  // {batch, topK}: rows of the first KV head of each element
  poplar::Tensor shares; // {nTasks, topK}
};

} // namespace sparq
