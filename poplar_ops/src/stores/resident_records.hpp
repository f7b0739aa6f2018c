// SPDX-License-Identifier: Apache-2.0
//
// A key index of few bits in SRAM. The block that is being filled is the tail.
#pragma once

#include "index.hpp"

namespace sparq {

class ResidentRecords final : public Index {
public:
  static constexpr const char *what = "a key index in SRAM";
  ResidentRecords(poplar::Graph &graph, const Cache &cache, bool);

  // {nTasks, parts, nLayers, headDim, ...} UNSIGNED_INT: of the full blocks among the positions of each
  // part. The parts of a slot take positions in order, so many.
  const poplar::Tensor &index() const { return index_; }
  static unsigned partPositions(const Plan &plan) {
    return partLength(plan.layout.capacity, plan.placement.parts);
  }
  // Of full blocks from the index, of the others from the tail.
  void score(const Context &context, const SparqSettings &settings, const Waves &waves,
             const QueryComponents &q, const Scores &scores) const override; // resident_index.cpp

  bool lengthsApart() const override { return true; }
  void appended(const Append &step, const poplar::Tensor &full) const override;
  void filled(const Steps &steps, const poplar::Tensor &replaced) const override;
  std::unique_ptr<HostStore> host(poplar::Graph &graph, const Cache &cache) const override;

  // Adds what makes the index anew, of the layer that is being worked on, from its rows and lengths.
  void addRebuild(const Steps &steps) const;

private:
  poplar::Tensor index_;
};

} // namespace sparq
