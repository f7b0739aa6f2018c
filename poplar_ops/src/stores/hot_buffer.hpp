// SPDX-License-Identifier: Apache-2.0
//
// Hot rows: those that were selected last, and the newest, in SRAM. Which of them, and where they
// are: HotRows (sparq/plan.hpp).
#pragma once

#include "rows.hpp"

namespace sparq {

class HotBuffer final : public Store, public ListRows {
public:
  static constexpr const char *what = "hot rows";
  HotBuffer(Graph &graph, const Cache &cache, bool);

  Tensor keys;   // {nTasks, nSets * 4, nLayers, rows, headDim / 4} HALF, by pairs of lanes
  Tensor values; // {nTasks, slices, nLayers, nPlaces, width} HALF, by components
  Tensor held,
      stamps;    // {nTasks, nOwners, nLayers, nWays} UNSIGNED_INT: what is in which place,
                 // and when it was last selected
  Tensor clock;  // {nTasks, nOwners} UNSIGNED_INT: attention calls so far
  Tensor misses; // {nTasks} UNSIGNED_INT: rows that the last call fetched

  void appendNewest(const Append &step) const override; // it is hot
  // Nothing is hot any more of tasks [firstTask, endTask).
  void replaced(const Steps &steps, unsigned firstTask, unsigned endTask) const override;
  std::unique_ptr<HostStore> host(Graph &graph, const Cache &cache) const override;

  // A list of positions themselves.
  ListEntries entries(const Cache &, unsigned) const override { return {0, 0, 0}; }
  Gathered attend(const Context &context, const Waves &waves, const QueryComponents &q,
                  const Selected &selected) const override;
};

// Brings selected positions {slots, topK} into the buffer: their places {slots, topK}.
Tensor makeHot(const Context &context, const HotBuffer &buffer, const Tensor &positions);

// Attention over rows in these places {slots, topK} of the buffer, plus 1; `selected` as
// selectPositions gives it.
Gathered hotAttention(const Context &context, const HotBuffer &buffer, const Waves &waves,
                      const QueryComponents &q, const Selected &selected, const Tensor &slots);

} // namespace sparq
