// SPDX-License-Identifier: Apache-2.0
#include "list_weights.hpp"
#include "codelets/attention.cycles.hpp"
#include "softmax.hpp"

namespace sparq {

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
    context.addVertex(weigh, "sparq::RowWeights", piece.slot, piece.part,
                      cycles::rowWeights(piece.n, g),
                      "filled"_f = context.filled(piece.slot, piece.part),
                      "maximum"_f = piece.maxima, "weights"_f = piece.scores, "groupSize"_f = g,
                      "nRows"_f = piece.n, "firstRow"_f = piece.first);
  });
}

void ListWeights::addApproxSums(const ComputeSet &cs, const std::vector<Tensor> &selectedSums,
                                unsigned part) const {
  if (selectedSums.empty())
    return;
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    const unsigned nBlocks = static_cast<unsigned>(selectedSums[slot].dim(1));
    for (unsigned h = 0; h != g && headsApart(context); ++h)
      context.addVertex(cs, "sparq::FoldSums", slot, partOfHead(context, g + h),
                        cycles::foldSums(nBlocks, 1), "blockSums"_f = selectedSums[slot][h],
                        "sums"_f = approxSums[slot].slice(h, h + 1), "nBlocks"_f = nBlocks,
                        "groupSize"_f = 1u);
    if (!headsApart(context))
      context.addVertex(cs, "sparq::FoldSums", slot, part, cycles::foldSums(nBlocks, g),
                        "blockSums"_f = selectedSums[slot], "sums"_f = approxSums[slot],
                        "nBlocks"_f = nBlocks, "groupSize"_f = g);
  }
}

void ListWeights::addSums(const ComputeSet &cs, const Tensor &sums) const {
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    if (headsApart(context))
      for (unsigned h = 0; h != g; ++h)
        context.addVertex(cs, "sparq::ListSums", slot, partOfHead(context, h),
                          cycles::listSums(topK, 1), "weights"_f = all(slot)[h],
                          "sums"_f = sums[slot].slice(h, h + 1), "groupSize"_f = 1u,
                          "topK"_f = topK);
    else
      context.addVertex(cs, "sparq::ListSums", slot, context.parts() - 1, cycles::listSums(topK, g),
                        "weights"_f = all(slot), "sums"_f = sums[slot], "groupSize"_f = g,
                        "topK"_f = topK);
}

void ListWeights::addShares(const ComputeSet &cs, const Tensor &sums,
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

} // namespace sparq
