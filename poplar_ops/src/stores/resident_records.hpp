// SPDX-License-Identifier: Apache-2.0
//
// A key index of few bits in SRAM. The block that is being filled is the tail.
#pragma once

#include "index.hpp"

namespace sparq {

class ResidentRecords final : public Index {
public:
  static constexpr const char *what = "a key index in SRAM";
  ResidentRecords(Graph &graph, const Cache &cache, bool);

  // {nTasks, parts, nLayers, indexDim, ...} UNSIGNED_INT: of the full blocks among the positions of
  // each part. The parts of a slot take positions in order, so many.
  const Tensor &index() const { return index_; }
  static unsigned partPositions(const Plan &plan) {
    return partLength(plan.layout.capacity, plan.placement.parts);
  }
  bool makesTemperatures() const override { return true; }
  unsigned columnStep() const override { return static_cast<unsigned>(index_.dim(4)); }
  // resident_index.cpp: with the query the block that is being filled
  void loadQuery(const Context &context, const Waves &waves, const Tensor &query,
                 const QueryComponents &q) const override;
  // Scores of full blocks from the index, of the others from the tail.
  void score(const Context &context, const SparqSettings &settings, const Waves &waves,
             const QueryComponents &q, const Scores &scores) const override;

  void appended(const Append &step, const Tensor &full) const override;
  void filled(const Steps &steps, const Tensor &replaced) const override;
  std::unique_ptr<HostStore> host(Graph &graph, const Cache &cache) const override;

  // Adds what makes the index anew, of the layer that is being worked on, from its rows and
  // lengths.
  void addRebuild(const Steps &steps) const;

private:
  Tensor index_;
};

// Whether codes are taken out of their words once for all heads of a group
// (codelets/code_products.hpp).
bool scoredByGroup(const Plan &plan);

// Six workers have as many words of codes each: what a part has beyond that it lends to a part
// without positions, which scores it and makes weights of it.
struct Lending {
  unsigned nWords = 0;             // that a part lends, the last ones of its last block: 0, 2 or 4
  unsigned nPieces = 0;            // of other parts, on one that helps, at most
  unsigned first = 0, nHelper = 0; // parts that help
  unsigned nOwners = 0;            // parts that lend

  Lending(const Plan &plan, const Waves &waves);
  unsigned positions() const { return nWords * 8; } // of a piece
  unsigned nLent(unsigned part) const { return part < nOwners ? positions() : 0; }
  bool helps(unsigned part) const { return part >= first && part - first < nHelper; }
  // Pieces on a part that helps: of the parts from firstOwner on.
  unsigned firstOwner(unsigned helper) const { return (helper - first) * nPieces; }
  unsigned pieces(unsigned helper) const {
    const unsigned behind = nOwners - firstOwner(helper);
    return behind < nPieces ? behind : nPieces;
  }
};

// {slots, parts} UNSIGNED_INT: positions that a part which helps has scores of.
inline Tensor heldOf(const Context &context) { return context.perPart(UNSIGNED_INT, {}, "held"); }

} // namespace sparq
