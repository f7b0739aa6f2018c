// SPDX-License-Identifier: Apache-2.0
#include "arith/scale.hpp"
#include "codelets/gathered_attention.cycles.hpp"
#include "list_weights.hpp"
#include "planning.hpp"
#include "sparq/step_names.hpp"
#include "stores/rows.hpp"
#include "weighted_values.hpp"
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
        g(contextIn.groupSize()), d(contextIn.headDim()), topK(listLength),
        weights(contextIn, listLength) {
    keyRows = context.sliced(HALF, topK, weights.rowsPerPart, d, "key_rows");
    valueRows = context.sliced(HALF, topK, weights.rowsPerPart, d, "value_rows");
  }

  // Fetches the rows {slots, 2, topK}.
  void read(const Tensor &rows) const {
    const std::size_t nRows = std::size_t(context.nSlots()) * topK;
    const Tensor keysLanding = context.active(keyRows).reshape({nRows, d}),
                 valuesLanding = context.active(valueRows).reshape({nRows, d});
    const auto offsets = [&](unsigned i) {
      return context.active(rows).slice(i, i + 1, 1).flatten();
    };
    const RemoteBuffer &buffer = storeOf<SplitRows>(context.cache).buffer();
    if (2 * nRows * d * 2 <= Lockstep::maxCopyBytes) { // one fixed cost instead of two
      context.cache.lockstep->read(buffer, concat(keysLanding, valuesLanding, 0),
                                   concat(offsets(0), offsets(1), 0), context.program,
                                   {context.dc, steps::readRows});
    } else {
      context.cache.lockstep->read(buffer, keysLanding, offsets(0), context.program,
                                   {context.dc, steps::readKeyRows});
      context.cache.lockstep->read(buffer, valuesLanding, offsets(1), context.program,
                                   {context.dc, steps::readValueRows});
    }
  }

  // Exact scores and their softmax; see ListWeights::weigh.
  void weigh(const std::vector<Tensor> &selectedSums) {
    bool first = true;
    weights.weigh([&](const ComputeSet &cs, const ListWeights::Piece &piece) {
      if (first) // meanwhile
        weights.addApproxSums(cs, selectedSums, context.parts() - 1);
      first = false;
      const auto [slot, part, first, n, scores, maxima] = piece;
      addVertex(graph, cs, "sparq::RowScores", context.tile(slot, part),
                {{"filled", context.filled(slot, part)},
                 {"keys", keyRows[slot].slice(first, first + n).flatten()},
                 {"query", q.query[slot][part]},
                 {"scores", scores},
                 {"maxima", maxima}},
                {{"groupSize", g},
                 {"headDim", d},
                 {"nRows", n},
                 {"firstRow", first},
                 {"scale", attentionScale(d)}},
                cycles::rowScores(n, g, d));
    });
  }

  Gathered sum() const;

private:
  const Context &context;
  Graph &graph;
  const Placement &p;
  const QueryComponents &q;
  const unsigned g, d;
  const unsigned topK;
  ListWeights weights;
  Tensor keyRows, valueRows; // {slots, topK, headDim}
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
  gathered.approxSums = weights.approxSums;
  const ComputeSet cs = context.execute("weighted_values");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    const Tensor e = weights.all(slot);
    for (unsigned item = 0; item != items; ++item) {
      const unsigned b = item / nSlices, c = item % nSlices * width, cEnd = std::min(c + width, d);
      const unsigned first = b * 64, end = std::min(first + 64, topK);
      addWeightedValues(
          context, cs, slot, item / itemsPerPart, onlyWave, {first, 0, topK, end - first, 0},
          valueRows[slot].slice(first, end).slice(c, cEnd, 1), e.slice(first, end, 1),
          flatPartials[slot][item].slice(0, std::size_t(g) * (cEnd - c)).reshape({1, g, cEnd - c}));
    }
  }
  weights.addSums(cs, gathered.sums);
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
  for (unsigned slot = 0; selected.sums.valid() && slot != context.nSlots(); ++slot)
    sums.push_back(ascending(selected.sums[slot], waves, block));
  list.read(selected.rows);
  list.weigh(sums);
  return list.sum();
}

} // namespace sparq
