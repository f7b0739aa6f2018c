// SPDX-License-Identifier: Apache-2.0
//
// Softmax over the list of selected positions, whatever makes their scores.
#pragma once

#include "context.hpp"
#include <functional>

namespace sparq {

// Of one round. Entry i of a slot's list is on part i / rowsPerPart.
class ListWeights {
public:
  ListWeights(const Context &context, unsigned topK);

  // Entries [first, first + n) of a slot on one part; scores {groupSize * n} flat, maxima {6 *
  // groupSize}.
  struct Piece {
    unsigned slot, part, first, n;
    Tensor scores, maxima;
  };
  // Makes weights of scores: `addScores` adds the vertex of one part that makes these.
  void weigh(const std::function<void(const ComputeSet &, const Piece &)> &addScores);
  // Adds the vertices, on that part or on those of partOfHead, that make approxSums: of the
  // approximate weights that were selected, selectedSums {groupSize, blocks} of each slot.
  void addApproxSums(const ComputeSet &cs, const std::vector<Tensor> &selectedSums,
                     unsigned part) const;
  // The weights of a slot, {groupSize, topK}.
  Tensor all(unsigned slot) const;
  // Adds the vertices that make sums {slots, groupSize} of them.
  void addSums(const ComputeSet &cs, const Tensor &sums) const;
  // Adds the vertices that make shares of attention of them (contract E11): shares {slots, topK},
  // each on the part that has its weights.
  void addShares(const ComputeSet &cs, const Tensor &sums, const std::vector<Tensor> &shares) const;

  const unsigned topK, rowsPerPart, nScoring; // parts that have entries
  Tensor approxSums;                          // {slots, groupSize}

private:
  // The part's piece seen as {groupSize, rows}: head by head, as the vertices index it.
  Tensor own(unsigned slot, unsigned part) const;
  template <class Use> void forEachPiece(const Tensor &maxima, const Use &use) const;

  const Context &context;
  const unsigned g;
  // {slots, topK, groupSize} in memory, so that a part's are one piece.
  Tensor weights;
};

} // namespace sparq
