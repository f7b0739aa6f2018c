// SPDX-License-Identifier: Apache-2.0
#include "list_weights.hpp"
#include "codelets/gathered_attention.cycles.hpp"
#include "codelets/softmax.cycles.hpp"
#include "codelets/window_history.cycles.hpp"
#include "softmax.hpp"

namespace sparq {

using namespace poplar;

ListWeights::ListWeights(const Context &contextIn, unsigned topKIn)
    : topK(topKIn), rowsPerPart((topKIn + contextIn.parts() - 1) / contextIn.parts()),
      nScoring((topKIn + rowsPerPart - 1) / rowsPerPart), context(contextIn),
      g(contextIn.groupSize()) {
  weights = context.sliced(FLOAT, topK, rowsPerPart, g, "row_weights");
  approxSums = headsApart(context) ? perHead(context, g, "row_approx_sums")
                                   : context.sliced(FLOAT, 1, 1, g, "row_approx_sums").squeeze({1});
}

Tensor ListWeights::own(unsigned slot, unsigned part) const {
  const unsigned first = part * rowsPerPart, n = std::min(rowsPerPart, topK - first);
  return weights[slot].slice(first, first + n).reshape({g, n});
}

Tensor ListWeights::all(unsigned slot) const {
  std::vector<Tensor> pieces;
  for (unsigned part = 0; part != nScoring; ++part)
    pieces.push_back(own(slot, part));
  return concat(pieces, 1);
}

template <class Use> void ListWeights::forEachPiece(const Tensor &maxima, const Use &use) const {
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned part = 0; part != nScoring; ++part) {
      const unsigned first = part * rowsPerPart;
      use(Piece{slot, part, first, std::min(rowsPerPart, topK - first), own(slot, part).flatten(),
                maxima[slot][part]});
    }
}

void ListWeights::weigh(const std::function<void(const ComputeSet &, const Piece &)> &addScores) {
  const Tensor maxima = context.perPart(FLOAT, {6 * std::size_t(g)}, "row_maxima");
  const Tensor maximum = context.perPart(FLOAT, {6 * std::size_t(g)}, "row_maximum");
  const ComputeSet score = context.execute("row_scores");
  forEachPiece(maxima, [&](const Piece &piece) { addScores(score, piece); });
  // With few rows, only the first workers had exact scores to take the largest of; or there are no
  // more scores than maxima.
  const std::size_t nMaxima = std::min(6u, rowsPerPart * g) * std::size_t(g);
  const bool fewScores = std::size_t(topK) * g < nScoring * nMaxima;
  std::vector<Tensor> ofSlots;
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    ofSlots.push_back(fewScores ? all(slot).transpose()
                                : maxima[slot].slice({0, 0}, {nScoring, nMaxima}));
  reduceMax(context, ofSlots, maximum);
  const ComputeSet weigh = context.execute("row_weights");
  forEachPiece(maximum, [&](const Piece &piece) {
    addVertex(context.graph, weigh, "sparq::RowWeights", context.tile(piece.slot, piece.part),
              {{"filled", context.filled(piece.slot, piece.part)},
               {"maximum", piece.maxima},
               {"weights", piece.scores}},
              {{"groupSize", g}, {"nRows", piece.n}, {"firstRow", piece.first}},
              cycles::rowWeights(piece.n, g));
  });
}

void ListWeights::addApproxSums(const ComputeSet &cs, const std::vector<Tensor> &selectedSums,
                                unsigned part) const {
  if (selectedSums.empty())
    return;
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    const unsigned nBlocks = static_cast<unsigned>(selectedSums[slot].dim(1));
    for (unsigned h = 0; h != g && headsApart(context); ++h)
      addVertex(context.graph, cs, "sparq::FoldSums",
                context.tile(slot, partOfHead(context, g + h)),
                {{"blockSums", selectedSums[slot][h]}, {"sums", approxSums[slot].slice(h, h + 1)}},
                {{"nBlocks", nBlocks}, {"groupSize", 1u}}, cycles::foldSums(nBlocks, 1));
    if (!headsApart(context))
      addVertex(context.graph, cs, "sparq::FoldSums", context.tile(slot, part),
                {{"blockSums", selectedSums[slot].flatten()}, {"sums", approxSums[slot]}},
                {{"nBlocks", nBlocks}, {"groupSize", g}}, cycles::foldSums(nBlocks, g));
  }
}

void ListWeights::addSums(const ComputeSet &cs, const Tensor &sums) const {
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    if (headsApart(context))
      for (unsigned h = 0; h != g; ++h)
        addVertex(context.graph, cs, "sparq::ListSums", context.tile(slot, partOfHead(context, h)),
                  {{"weights", all(slot)[h]}, {"sums", sums[slot].slice(h, h + 1)}},
                  {{"groupSize", 1u}, {"topK", topK}}, cycles::listSums(topK, 1));
    else
      addVertex(context.graph, cs, "sparq::ListSums", context.tile(slot, context.parts() - 1),
                {{"weights", all(slot).flatten()}, {"sums", sums[slot]}},
                {{"groupSize", g}, {"topK", topK}}, cycles::listSums(topK, g));
}

void ListWeights::addShares(const ComputeSet &cs, const Tensor &sums,
                            const std::vector<Tensor> &shares) const {
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned part = 0; part != nScoring; ++part) {
      const unsigned first = part * rowsPerPart, n = std::min(rowsPerPart, topK - first);
      addVertex(context.graph, cs, "sparq::ListShares", context.tile(slot, part),
                {{"weights", own(slot, part).flatten()},
                 {"sums", sums[slot]},
                 {"shares", shares[slot].slice(first, first + n)}},
                {{"groupSize", g}, {"nRows", n}}, cycles::listShares(n, g));
    }
}

} // namespace sparq
