// SPDX-License-Identifier: Apache-2.0
#include "hot_attention.hpp"
#include "arith/scale.hpp"
#include "codelets/hot_attention.cycles.hpp"
#include "list_weights.hpp"
#include "softmax.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

// {slots, nSets * 4, topK, groupSize, 2} FLOAT: sums of lanes, on the parts that have the keys.
Tensor laneSums(const Context &context, const HotBuffer &buffer, const QueryComponents &q,
                const Tensor &slots) {
  const HotRows &hot = context.plan().hot;
  const unsigned topK = static_cast<unsigned>(slots.dim(1)), g = context.groupSize(),
                 d = context.headDim(), n = hot.nSets * HotRows::nPairs;
  const Placement &p = context.placement();
  const Tensor sums = context.once("lane_sums", [&] {
    const Tensor t =
        context.graph.addVariable(FLOAT, {p.slots, n, topK, g, 2}, {context.dc, "lane_sums"});
    for (unsigned slot = 0; slot != p.slots; ++slot)
      for (unsigned i = 0; i != n; ++i)
        context.graph.setTileMapping(t[slot][i], p.tile(slot, i % p.parts));
    return t;
  });
  const ComputeSet cs = context.execute("lane_sums");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned i = 0; i != n; ++i) {
      const unsigned part = i % p.parts;
      addVertex(context.graph, cs, "sparq::LaneSums", context.tile(slot, part),
                {{"filled", context.filled(slot, part)},
                 {"layer", context.cache.layer[slot][part]},
                 {"places", slots[slot]},
                 {"query", q.query[slot][part]},
                 {"keys", buffer.keys[context.task(slot)][i].flatten()},
                 {"sums", sums[slot][i].flatten()}},
                {{"groupSize", g},
                 {"headDim", d},
                 {"topK", topK},
                 {"nRows", hot.rowsOfSet()},
                 {"pair", i % HotRows::nPairs},
                 {"set", i / HotRows::nPairs},
                 {"setShift", hot.setShift()},
                 {"each", ceilDiv(topK, cycles::nWorkers)}},
                cycles::laneSums(topK, hot.nSets, g, d));
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
  std::vector<Tensor> sums;
  for (unsigned slot = 0; selected.sums.valid() && slot != context.nSlots(); ++slot)
    sums.push_back(ascending(selected.sums[slot], waves, block));
  ListWeights weights(context, topK);
  weights.weigh([&](const ComputeSet &cs, const ListWeights::Piece &piece) {
    const unsigned end = piece.first + piece.n;
    addVertex(context.graph, cs, "sparq::LaneScores", context.tile(piece.slot, piece.part),
              {{"filled", context.filled(piece.slot, piece.part)},
               {"places", slots[piece.slot].slice(piece.first, end)},
               {"sums", lanes[piece.slot].slice(piece.first, end, 1).flatten()},
               {"scores", piece.scores},
               {"maxima", piece.maxima}},
              {{"groupSize", g},
               {"nRows", piece.n},
               {"firstRow", piece.first},
               {"setShift", hot.setShift()},
               {"scale", attentionScale(d)}},
              cycles::laneScores(piece.n, g));
  });
  Gathered gathered;
  gathered.sums = headsApart(context) ? perHead(context, 0, "row_sums")
                                      : context.sliced(FLOAT, 1, 1, g, "row_sums").squeeze({1});
  gathered.approxSums = weights.approxSums;
  const Tensor partials = context.once("row_partials", [&] {
    const Tensor t = context.graph.addVariable(FLOAT, {p.slots, nSlices, nBlocks, g, hot.width},
                                               {context.dc, "row_partials"});
    for (unsigned slot = 0; slot != p.slots; ++slot)
      for (unsigned i = 0; i != nSlices; ++i)
        for (unsigned b = 0; b != nBlocks; ++b)
          context.graph.setTileMapping(t[slot][i][b], p.tile(slot, b / ofCopy * nSlices + i));
    return t;
  });
  const ComputeSet cs = context.execute("weighted_values");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    const Tensor all = weights.all(slot);
    for (unsigned b = 0, part = 0; b < nBlocks; b += ofCopy)
      for (unsigned i = 0; i != nSlices; ++i, ++part) {
        const unsigned first = b * block, end = std::min(first + ofCopy * block, topK);
        addVertex(
            context.graph, cs, "sparq::HotValues", context.tile(slot, part),
            {{"filled", context.filled(slot, part)},
             {"layer", context.cache.layer[slot][part]},
             {"places", slots[slot].slice(first, end)},
             {"weights", all.slice(first, end, 1).flatten()},
             {"values", buffer.values[context.task(slot)][part].flatten()},
             {"partials", partials[slot][i].slice(b, std::min(b + ofCopy, nBlocks)).flatten()}},
            {{"groupSize", g},
             {"topK", end - first},
             {"firstEntry", first},
             {"nRows", hot.nPlaces},
             {"width", hot.width}},
            cycles::hotValues(end - first, hot.width, g));
      }
  }
  weights.addSums(cs, gathered.sums);
  weights.addApproxSums(cs, sums,
                        p.parts > 1 ? p.parts - 2 : 0); // not where the other sums are made
  gathered.partials = partials.dimShuffle({0, 2, 3, 1, 4}).reshape({p.slots, nBlocks, g, d});
  return gathered;
}

} // namespace sparq
