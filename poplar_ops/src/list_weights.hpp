// SPDX-License-Identifier: Apache-2.0
//
// Softmax over the list of selected positions, whatever makes their scores.
#pragma once

#include "attention_steps.hpp"
#include "codelets/attention.cycles.hpp"
#include "planning.hpp"
#include <functional>

namespace sparq {

// Of one round. Entry i of a slot's list is on part i / rowsPerPart.
class ListWeights {
public:
  ListWeights(const Context &contextIn, unsigned topKIn)
      : topK(topKIn), rowsPerPart(ceilDiv(topKIn, contextIn.parts())),
        nScoring(ceilDiv(topKIn, rowsPerPart)), context(contextIn), g(contextIn.groupSize()) {
    weights = context.sliced(FLOAT, topK, rowsPerPart, g, "row_weights");
    approxSums = headsApart(context)
                     ? perHead(context, g, "row_approx_sums")
                     : context.sliced(FLOAT, 1, 1, g, "row_approx_sums").squeeze({1});
  }

  // Entries [first, first + n) of a slot on one part; scores {groupSize * n} flat, maxima {6 *
  // groupSize}.
  struct Piece {
    unsigned slot, part, first, n;
    Tensor scores, maxima;
  };
  // Makes weights of scores: `addScores` adds the vertex of one part that makes these.
  void weigh(const std::function<void(const ComputeSet &, const Piece &)> &addScores) {
    const Tensor maxima = context.perPart(FLOAT, {6 * std::size_t(g)}, "row_maxima");
    const Tensor maximum = context.perPart(FLOAT, {6 * std::size_t(g)}, "row_maximum");
    const ComputeSet score = context.execute("row_scores");
    forEachPiece(maxima, [&](const Piece &piece) { addScores(score, piece); });
    // With few rows, only the first workers had exact scores to take the largest of; or there are
    // no more scores than maxima.
    const std::size_t nMaxima = std::min(6u, rowsPerPart * g) * std::size_t(g);
    const bool fewScores = std::size_t(topK) * g < nScoring * nMaxima;
    std::vector<Tensor> ofSlots;
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      ofSlots.push_back(fewScores ? all(slot).transpose()
                                  : maxima[slot].slice({0, 0}, {nScoring, nMaxima}));
    reduceMax(context, ofSlots, maximum);
    const ComputeSet weigh = context.execute("row_weights");
    forEachPiece(maximum, [&](const Piece &piece) {
      context.addVertex(weigh, "sparq::RowWeights", piece.slot, piece.part,
                        cycles::rowWeights(piece.n, g),
                        "filled"_f = context.filled(piece.slot, piece.part),
                        "maximum"_f = piece.maxima, "weights"_f = piece.scores, "groupSize"_f = g,
                        "nRows"_f = piece.n, "firstRow"_f = piece.first);
    });
  }
  // Adds the vertices, on that part or on those of partOfHead, that make approxSums: of the
  // approximate weights that were selected, if positions have any.
  void addApproxSums(const ComputeSet &cs, const Selected &selected, const Waves &waves,
                     unsigned part) const {
    for (unsigned slot = 0; selected.sums.valid() && slot != context.nSlots(); ++slot)
      addFoldSums(context, cs, slot, part, g, ascending(selected.sums[slot], waves, block),
                  approxSums[slot]);
  }
  // The weights of a slot, {groupSize, topK}.
  Tensor all(unsigned slot) const {
    std::vector<Tensor> pieces;
    for (unsigned part = 0; part != nScoring; ++part)
      pieces.push_back(own(slot, part));
    return concat(pieces, 1);
  }
  // Adds the vertices that make sums {slots, groupSize} of them.
  void addSums(const ComputeSet &cs, const Tensor &sums) const {
    const unsigned each = headsApart(context) ? 1 : g; // heads of a part
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      for (unsigned h = 0; h != g; h += each)
        context.addVertex(cs, "sparq::ListSums", slot,
                          headsApart(context) ? partOfHead(context, h) : context.parts() - 1,
                          cycles::listSums(topK, each), "weights"_f = all(slot).slice(h, h + each),
                          "sums"_f = sums[slot].slice(h, h + each), "groupSize"_f = each,
                          "topK"_f = topK);
  }
  // Adds the vertices that make shares of attention of them (contract E11): shares {slots, topK},
  // each on the part that has its weights.
  void addShares(const ComputeSet &cs, const Tensor &sums,
                 const std::vector<Tensor> &shares) const {
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      for (unsigned part = 0; part != nScoring; ++part) {
        const unsigned first = part * rowsPerPart, n = std::min(rowsPerPart, topK - first);
        context.addVertex(cs, "sparq::ListShares", slot, part, cycles::listShares(n, g),
                          "weights"_f = own(slot, part), "sums"_f = sums[slot],
                          "shares"_f = shares[slot].slice(first, first + n), "groupSize"_f = g,
                          "nRows"_f = n);
      }
  }

  const unsigned topK, rowsPerPart, nScoring; // parts that have entries
  Tensor approxSums;                          // {slots, groupSize}

private:
  // The part's piece seen as {groupSize, rows}: head by head, as the vertices index it.
  Tensor own(unsigned slot, unsigned part) const {
    const unsigned first = part * rowsPerPart, n = std::min(rowsPerPart, topK - first);
    return weights[slot].slice(first, first + n).reshape({g, n});
  }
  template <class Use> void forEachPiece(const Tensor &maxima, const Use &use) const {
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      for (unsigned part = 0; part != nScoring; ++part) {
        const unsigned first = part * rowsPerPart;
        use(Piece{slot, part, first, std::min(rowsPerPart, topK - first), own(slot, part).flatten(),
                  maxima[slot][part]});
      }
  }

  const Context &context;
  const unsigned g;
  // {slots, topK, groupSize} in memory, so that a part's are one piece.
  Tensor weights;
};

} // namespace sparq
