// SPDX-License-Identifier: Apache-2.0
//
// What window attention selects by (docs/exactness.md E11), as a graph sees it.
#pragma once

#include "stores/history.hpp"
#include "stores/rows.hpp"

namespace sparq {

// One attention program's use of it: in every round `keys`, then `take`; behind them `addStep`.
class HistoryStep {
public:
  // Loads the sums of the layer that is being worked on.
  HistoryStep(poplar::Graph &graph, const Cache &cache, unsigned topK,
              poplar::program::Sequence &program, const poplar::DebugContext &dc);
  // The sums by position, on the parts of each slot: {slots, parts, partPositions}.
  poplar::Tensor keys(const Context &context, const Waves &waves) const;
  // Of a round: how much attention each entry of the list got. `list`: the context of what attends
  // to it.
  void take(const Context &list, const Selected &selected, const Gathered &gathered);
  // The step of all rounds into the history.
  void addStep();

private:
  poplar::Graph &graph;
  const Cache &cache;
  const Placement &p;
  const RecentShares &history;
  const ListRows &entries;
  const unsigned topK, rowsPerPart;
  poplar::program::Sequence &program;
  const poplar::DebugContext dc;
  poplar::Tensor sums;   // {batch, positions}
  poplar::Tensor lists;  // {batch, topK}: rows of the first KV head of each element
  poplar::Tensor shares; // {nTasks, topK}
};

} // namespace sparq
