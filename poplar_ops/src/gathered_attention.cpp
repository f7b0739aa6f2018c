// SPDX-License-Identifier: Apache-2.0
#include "planning.hpp"
#include "sparq/scale.hpp"
#include "steps.hpp"
#include "vertex_cycles.hpp"
#include <poplar/Program.hpp>

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

// Attention over the rows of a list, of one round.
class ListAttention {
public:
  ListAttention(const Context &contextIn, const QueryComponents &qIn, unsigned listLength)
      : context(contextIn), graph(contextIn.graph), p(contextIn.placement()), q(qIn),
        g(contextIn.groupSize()), d(contextIn.headDim()), topK(listLength) {
    keyRows = context.sliced(HALF, topK, rowsPerPart, d, "key_rows");
    valueRows = context.sliced(HALF, topK, rowsPerPart, d, "value_rows");
  }

  // Fetches the rows {slots, 2, topK}.
  void read(const Tensor &rows) const {
    const std::size_t nRows = std::size_t(context.nSlots()) * topK;
    const Tensor keysLanding = context.active(keyRows).reshape({nRows, d}),
                 valuesLanding = context.active(valueRows).reshape({nRows, d});
    const auto offsets = [&](unsigned i) {
      return context.active(rows).slice(i, i + 1, 1).flatten();
    };
    const RemoteBuffer &buffer = context.cache.rows;
    if (2 * nRows * d * 2 <= maxCopyBytes) { // one fixed cost instead of two
      readRemote(buffer, concat(keysLanding, valuesLanding, 0), concat(offsets(0), offsets(1), 0),
                 context.program, {context.dc, "read_rows"});
    } else {
      readRemote(buffer, keysLanding, offsets(0), context.program, {context.dc, "read_key_rows"});
      readRemote(buffer, valuesLanding, offsets(1), context.program,
                 {context.dc, "read_value_rows"});
    }
  }

  // Exact scores and their softmax. Meanwhile the sum of the approximate weights that were
  // selected, {groupSize, blocks} of each slot.
  void weigh(const std::vector<Tensor> &selectedSums) {
    weights = context.sliced(FLOAT, topK, rowsPerPart, g, "row_weights");
    approxSums = context.sliced(FLOAT, 1, 1, g, "row_approx_sums").squeeze({1});
    const Tensor maxima = context.perPart(FLOAT, {6 * std::size_t(g)}, "row_maxima");
    const Tensor maximum = context.perPart(FLOAT, {6 * std::size_t(g)}, "row_maximum");
    addScores(maxima, selectedSums);
    // With few rows, only the first workers had exact scores to take the largest of.
    const std::size_t nMaxima = std::min(6u, rowsPerPart * g) * std::size_t(g);
    std::vector<Tensor> ofSlots;
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      ofSlots.push_back(maxima[slot].slice({0, 0}, {nScoring, nMaxima}));
    reduceMax(context, ofSlots, maximum);
    addWeights(maximum);
  }

  Gathered sum() const;

private:
  // The part's piece seen as {groupSize, rows}: head by head, as the vertices index it.
  Tensor own(const Tensor &t, unsigned slot, unsigned part) const {
    const unsigned first = part * rowsPerPart, n = std::min(rowsPerPart, topK - first);
    return t[slot].slice(first, first + n).reshape({g, n});
  }
  // All of a slot, {groupSize, topK}.
  Tensor all(const Tensor &t, unsigned slot) const {
    std::vector<Tensor> pieces;
    for (unsigned part = 0; part != nScoring; ++part)
      pieces.push_back(own(t, slot, part));
    return concat(pieces, 1);
  }

  void addScores(const Tensor &maxima, const std::vector<Tensor> &selectedSums) const {
    const ComputeSet score = context.execute("row_scores");
    for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
      const unsigned nBlocks = static_cast<unsigned>(selectedSums[slot].dim(1));
      addVertex(graph, score, "sparq::FoldSums", context.tile(slot, p.parts - 1),
                {{"blockSums", selectedSums[slot].flatten()}, {"sums", approxSums[slot]}},
                {{"nBlocks", nBlocks}, {"groupSize", g}}, cycles::foldSums(nBlocks, g));
      for (unsigned part = 0; part != nScoring; ++part) {
        const unsigned first = part * rowsPerPart, n = std::min(rowsPerPart, topK - first);
        addVertex(graph, score, "sparq::RowScores", context.tile(slot, part),
                  {{"filled", context.filled(slot, part)},
                   {"keys", keyRows[slot].slice(first, first + n).flatten()},
                   {"query", q.query[slot][part]},
                   {"scores", own(weights, slot, part).flatten()},
                   {"maxima", maxima[slot][part]}},
                  {{"groupSize", g},
                   {"headDim", d},
                   {"nRows", n},
                   {"firstRow", first},
                   {"scale", attentionScale(d)}},
                  cycles::rowScores(n, g, d));
      }
    }
  }

  void addWeights(const Tensor &maximum) const {
    const ComputeSet weigh = context.execute("row_weights");
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      for (unsigned part = 0; part != nScoring; ++part) {
        const unsigned first = part * rowsPerPart, n = std::min(rowsPerPart, topK - first);
        addVertex(graph, weigh, "sparq::RowWeights", context.tile(slot, part),
                  {{"filled", context.filled(slot, part)},
                   {"maximum", maximum[slot][part]},
                   {"weights", own(weights, slot, part).flatten()}},
                  {{"groupSize", g}, {"nRows", n}, {"firstRow", first}}, cycles::rowWeights(n, g));
      }
  }

  const Context &context;
  Graph &graph;
  const Placement &p;
  const QueryComponents &q;
  const unsigned g, d;
  const unsigned topK;
  // Row i of a slot lands on part i / rowsPerPart, which scores it.
  const unsigned rowsPerPart = (topK + p.parts - 1) / p.parts;
  const unsigned nScoring = (topK + rowsPerPart - 1) / rowsPerPart; // parts that have rows
  Tensor keyRows, valueRows;                                        // {slots, topK, headDim}
  // Weights of a part's rows for every head: {slots, topK, groupSize} in memory, so that a part's
  // are one piece.
  Tensor weights;
  Tensor approxSums; // {slots, groupSize}
};

Gathered ListAttention::sum() const {
  const WaveIndex onlyWave = context.waveIndex(1);
  // Blocks of the list and slices of the components are shared out over the parts. A slice of few
  // components is worked on two at a time by each worker, so 12 of them make six workers busy.
  const unsigned nBlocks = (topK + 63) / 64;
  const unsigned slices = std::max(1u, std::min(p.parts / nBlocks, d / 4));
  const unsigned share = (d + slices - 1) / slices;
  const unsigned width = share <= 12 ? (share + 1) / 2 * 2 : (share + 7) / 8 * 8;
  const unsigned nSlices = (d + width - 1) / width;
  const unsigned items = nBlocks * nSlices, itemsPerPart = (items + p.parts - 1) / p.parts;
  // {slots, blocks, slices, groupSize * width} -> {slots, blocks, groupSize, headDim}
  const Tensor flatPartials =
      context.sliced(FLOAT, items, itemsPerPart, std::size_t(g) * width, "row_partials");
  Gathered gathered;
  gathered.sums = context.sliced(FLOAT, 1, 1, g, "row_sums").squeeze({1});
  gathered.approxSums = approxSums;
  const ComputeSet cs = context.execute("weighted_values");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    const Tensor e = all(weights, slot);
    for (unsigned item = 0; item != items; ++item) {
      const unsigned b = item / nSlices, c = item % nSlices * width, cEnd = std::min(c + width, d);
      const unsigned first = b * 64, end = std::min(first + 64, topK);
      addWeightedValues(
          context, cs, slot, item / itemsPerPart, onlyWave, {first, 0, topK, end - first, 0},
          valueRows[slot].slice(first, end).slice(c, cEnd, 1), e.slice(first, end, 1),
          flatPartials[slot][item].slice(0, std::size_t(g) * (cEnd - c)).reshape({1, g, cEnd - c}));
    }
    addVertex(graph, cs, "sparq::ListSums", context.tile(slot, p.parts - 1),
              {{"weights", e.flatten()}, {"sums", gathered.sums[slot]}},
              {{"groupSize", g}, {"topK", topK}}, cycles::listSums(topK, g));
  }
  std::vector<Tensor> slicesOfAll;
  for (unsigned slice = 0; slice != nSlices; ++slice) {
    const unsigned n = std::min(width, d - slice * width);
    std::vector<Tensor> blocks;
    for (unsigned b = 0; b != nBlocks; ++b)
      blocks.push_back(flatPartials.slice(b * nSlices + slice, b * nSlices + slice + 1, 1)
                           .slice(0, std::size_t(g) * n, 2)
                           .reshape({p.slots, 1, g, n}));
    slicesOfAll.push_back(concat(blocks, 1));
  }
  gathered.partials = concat(slicesOfAll, 3);
  return gathered;
}

} // namespace

Gathered gatheredAttention(const Context &context, const Waves &waves, const QueryComponents &q,
                           const Selected &selected) {
  ListAttention list(context, q, static_cast<unsigned>(selected.rows.dim(2)));
  std::vector<Tensor> sums;
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    sums.push_back(ascending(selected.sums[slot], waves, block));
  list.read(selected.rows);
  list.weigh(sums);
  return list.sum();
}

} // namespace sparq
