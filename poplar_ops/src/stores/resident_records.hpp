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

  // {nTasks, parts, nLayers, indexDim, ...} UNSIGNED_INT: of the full blocks among the positions of
  // each part. The parts of a slot take positions in order, so many.
  const poplar::Tensor &index() const { return index_; }
  static unsigned partPositions(const Plan &plan) {
    return partLength(plan.layout.capacity, plan.placement.parts);
  }
  // resident_components.cpp
  QueryComponents components(const Context &context, const SparqSettings &settings) const override;
  void selectComponents(const Context &context, const SparqSettings &settings,
                        const QueryComponents &q) const override;
  // resident_index.cpp: with the query the block that is being filled; lengths come with the
  // components
  void loadQuery(const Context &context, const Waves &waves, const poplar::Tensor &query,
                 const QueryComponents &q) const override;
  // Scores of full blocks from the index, of the others from the tail.
  void score(const Context &context, const SparqSettings &settings, const Waves &waves,
             const QueryComponents &q, const Scores &scores) const override;

  bool lengthsApart() const override { return true; }
  void appended(const Append &step, const poplar::Tensor &full) const override;
  void filled(const Steps &steps, const poplar::Tensor &replaced) const override;
  std::unique_ptr<HostStore> host(poplar::Graph &graph, const Cache &cache) const override;

  // Adds what makes the index anew, of the layer that is being worked on, from its rows and
  // lengths.
  void addRebuild(const Steps &steps) const;

private:
  // {slots, parts, rank} UNSIGNED_INT: where the records of each component begin.
  static poplar::Tensor columnsOf(const Context &context, unsigned rank) {
    return context.perPart(poplar::UNSIGNED_INT, {rank}, "columns");
  }
  // Adds the vertices that make the inverse temperatures, on the last part.
  void addTemperatures(const Context &context, const poplar::ComputeSet &cs,
                       const QueryComponents &q) const;

  poplar::Tensor index_;
};

} // namespace sparq
