// SPDX-License-Identifier: Apache-2.0
#include "codelets/hot_rows.cycles.hpp"
#include "list_weights.hpp"
#include "stores/rows.hpp"

namespace sparq {

namespace {

// {slots, nSets * 4, topK, groupSize, 2} FLOAT: sums of lanes, on the parts that have the keys.
Tensor laneSums(const Context &context, const HotBuffer &buffer, const QueryComponents &q,
                const Tensor &slots) {
  const HotRows &hot = context.plan().hot;
  const unsigned topK = static_cast<unsigned>(slots.dim(1)), g = context.groupSize(),
                 d = context.headDim(), n = hot.nSets * HotRows::nPairs;
  const Tensor sums = context.onParts(FLOAT, n, {topK, g, 2}, "lane_sums");
  const ComputeSet cs = context.execute("lane_sums");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned i = 0; i != n; ++i) {
      const unsigned part = i % context.parts();
      context.addVertex(
          cs, "sparq::LaneSums", slot, part, cycles::laneSums(topK, hot.nSets, g, d),
          "filled"_f = context.filled(slot, part), "layer"_f = context.cache.layer[slot][part],
          "places"_f = slots[slot], "query"_f = q.query[slot][part],
          "keys"_f = buffer.keys[context.task(slot)][i], "sums"_f = sums[slot][i],
          "groupSize"_f = g, "headDim"_f = d, "topK"_f = topK, "nRows"_f = hot.rowsOfSet(),
          "pair"_f = i % HotRows::nPairs, "set"_f = i / HotRows::nPairs,
          "setShift"_f = hot.setShift(), "each"_f = ceilDiv(topK, cycles::nWorkers));
    }
  return sums;
}

} // namespace

Gathered hotAttention(const Context &context, const HotBuffer &buffer, const Waves &waves,
                      const QueryComponents &q, const Selected &selected, const Tensor &slots) {
  const HotRows &hot = context.plan().hot;
  const unsigned topK = static_cast<unsigned>(slots.dim(1)), g = context.groupSize(),
                 d = context.headDim(), nBlocks = ceilDiv(topK, block), nSlices = d / hot.width;
  const Placement &p = context.placement();
  // Of each copy of the values as many blocks, but for the last one.
  const unsigned ofCopy = ceilDiv(nBlocks, hot.valueCopies(d, p.parts));
  const Tensor lanes = laneSums(context, buffer, q, slots);
  ListWeights weights(context, topK);
  weights.weigh([&](const ComputeSet &cs, const ListWeights::Piece &piece) {
    const unsigned end = piece.first + piece.n;
    context.addVertex(
        cs, "sparq::LaneScores", piece.slot, piece.part, cycles::laneScores(piece.n, g),
        "filled"_f = context.filled(piece.slot, piece.part),
        "places"_f = slots[piece.slot].slice(piece.first, end),
        "sums"_f = lanes[piece.slot].slice(piece.first, end, 1), "scores"_f = piece.scores,
        "maxima"_f = piece.maxima, "groupSize"_f = g, "nRows"_f = piece.n,
        "firstRow"_f = piece.first, "setShift"_f = hot.setShift(), "scale"_f = attentionScale(d));
  });
  Gathered gathered;
  gathered.sums = headsApart(context) ? perHead(context, 0, "row_sums")
                                      : context.sliced(FLOAT, 1, 1, g, "row_sums").squeeze({1});
  gathered.approxSums = weights.approxSums;
  const Tensor partials =
      context
          .onParts(FLOAT, nSlices * nBlocks, {g, hot.width}, "row_partials",
                   [&](unsigned i) { return i % nBlocks / ofCopy * nSlices + i / nBlocks; })
          .reshape({p.slots, nSlices, nBlocks, g, hot.width});
  const ComputeSet cs = context.execute("weighted_values");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    const Tensor all = weights.all(slot);
    for (unsigned b = 0, part = 0; b < nBlocks; b += ofCopy)
      for (unsigned i = 0; i != nSlices; ++i, ++part) {
        const unsigned first = b * block, end = std::min(first + ofCopy * block, topK);
        context.addVertex(
            cs, "sparq::HotValues", slot, part, cycles::hotValues(end - first, hot.width, g),
            "filled"_f = context.filled(slot, part), "layer"_f = context.cache.layer[slot][part],
            "places"_f = slots[slot].slice(first, end), "weights"_f = all.slice(first, end, 1),
            "values"_f = buffer.values[context.task(slot)][part],
            "partials"_f = partials[slot][i].slice(b, std::min(b + ofCopy, nBlocks)),
            "groupSize"_f = g, "topK"_f = end - first, "firstEntry"_f = first,
            "nRows"_f = hot.nPlaces, "width"_f = hot.width);
      }
  }
  weights.addSums(cs, gathered.sums);
  weights.addApproxSums(cs, selected, waves,
                        p.parts > 1 ? p.parts - 2 : 0); // not where the other sums are made
  gathered.partials = partials.dimShuffle({0, 2, 3, 1, 4}).reshape({p.slots, nBlocks, g, d});
  return gathered;
}

} // namespace sparq
