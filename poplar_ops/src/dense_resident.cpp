// SPDX-License-Identifier: Apache-2.0
//
// Dense decode attention over a cache in SRAM. Keys and values are spread evenly over all parts of
// a slot, each by units of its own; between the two, the softmax takes whole blocks of positions.
#include "arith/scale.hpp"
#include "codelets/dense_resident.cycles.hpp"
#include "query_components.hpp"
#include "softmax.hpp"
#include "stores/rows.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

constexpr unsigned octet = 8;

// One wave, all of the cache.
Waves oneWave(const Plan &plan, const Attention &, unsigned) {
  Waves w{};
  w.length = partLength(plan.layout.capacity, plan.placement.parts);
  w.stride = plan.layout.capacity;
  w.nWaves = 1;
  w.chunk = 1;
  return w;
}

std::uint64_t need(const Plan &plan, const PlannedAttention &attention, unsigned) {
  const ResidentPieces pieces(plan);
  const std::uint64_t g = plan.shape.groupSize(), d = plan.shape.headDim,
                      blocks = ceilDiv(pieces.units, pieces.perBlock) + 1;
  return scoreBytes(plan, attention.waves) + 4 * g * (pieces.positions + blocks * block) +
         4 * g * (2 * d + pieces.units * octet);
}

class Round {
public:
  Round(const Context &contextIn, const Waves &wavesIn)
      : context(contextIn), waves(wavesIn), rows(storeOf<ResidentRows>(contextIn.cache)),
        pieces(rows.pieces), g(contextIn.groupSize()), d(contextIn.headDim()),
        scores(createScores(contextIn, wavesIn)) {}

  void attend(const Tensor &query, const Tensor &output) const {
    const Tensor perPart = createQuery(context);
    loadQuery(context, query, perPart);
    score(perPart);
    softmax(context, waves, scores);
    sum(output);
  }

private:
  // Positions of a slot, in the order of parts: {groupSize, capacity}.
  Tensor ofPositions(const Tensor &perPart, const Waves &of) const {
    return ascending(perPart, of, 1).slice(0, context.layout().capacity, 1);
  }

  void score(const Tensor &query) const {
    const unsigned heads = (g + 1) / 2 * 2;
    const Tensor spread = context.perPart(FLOAT, {std::size_t(heads) * d}, "spread_query"),
                 lanes = context.perPart(FLOAT, {6 * 32}, "lane_sums"),
                 own = context.perPart(FLOAT, {g, pieces.positions}, "scores");
    const ComputeSet spreads = context.execute("spread_query"), cs = context.execute("pair_scores");
    std::vector<Tensor> from, to;
    Waves ofParts = waves;
    ofParts.length = pieces.positions;
    for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
      for (unsigned part = 0; part != pieces.nKeyParts; ++part) {
        const unsigned tile = context.tile(slot, part);
        addVertex(context.graph, spreads, "sparq::SpreadQuery", tile,
                  {{"query", query[slot][part]}, {"spread", spread[slot][part]}},
                  {{"groupSize", g}, {"headDim", d}}, cycles::spreadQuery(g, d));
        addVertex(context.graph, cs, "sparq::PairScores", tile,
                  {{"filled", context.filled(slot, part)},
                   {"layer", context.cache.layer[slot][part]},
                   {"keys", rows.keys[context.task(slot)][part].flatten()},
                   {"spread", spread[slot][part]},
                   {"lanes", lanes[slot][part]},
                   {"scores", own[slot][part].flatten()}},
                  {{"groupSize", g},
                   {"headDim", d},
                   {"length", pieces.positions},
                   {"firstPosition", part * pieces.positions},
                   {"scale", attentionScale(d)}},
                  cycles::pairScores(pieces.positions, g, d));
      }
      from.push_back(ofPositions(own[slot], ofParts).flatten());
      to.push_back(ofPositions(scores.weights[slot], waves).flatten());
    }
    context.copy(concat(from), concat(to), {context.dc, "scores"});
  }

  // Weights of whole blocks [first, end): {blocks, groupSize, 64}.
  Tensor ofBlocks(unsigned slot, unsigned first, unsigned end) const {
    const unsigned perPart = waves.length / block;
    std::vector<Tensor> all;
    for (unsigned b = first; b != end; ++b)
      all.push_back(scores.weights[slot][b / perPart].slice(b % perPart * block,
                                                            (b % perPart + 1) * block, 1));
    return concat(all);
  }

  void sum(const Tensor &output) const {
    const Tensor partials =
        context.perPart(FLOAT, {pieces.units, g, octet}, "partials"); // {slots, parts, ...}
    const ComputeSet cs = context.execute("unit_values"), finish = context.execute("output");
    const unsigned nOutput = g * pieces.perBlock, perPart = ceilDiv(nOutput, context.parts()),
                   nBlocks = pieces.nUnits / pieces.perBlock;
    for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
      for (unsigned part = 0; part != pieces.nValueParts; ++part) {
        const unsigned first = part * pieces.units,
                       end = std::min(first + pieces.units, pieces.nUnits),
                       firstBlock = first / pieces.perBlock,
                       endBlock = ceilDiv(end, pieces.perBlock);
        addVertex(context.graph, cs, "sparq::UnitValues", context.tile(slot, part),
                  {{"filled", context.filled(slot, part)},
                   {"layer", context.cache.layer[slot][part]},
                   {"values", rows.values[context.task(slot)][part].flatten()},
                   {"weights", ofBlocks(slot, firstBlock, endBlock).flatten()},
                   {"partials", partials[slot][part].slice(0, end - first).flatten()}},
                  {{"groupSize", g},
                   {"layerUnits", pieces.units},
                   {"nUnits", end - first},
                   {"nBlocks", endBlock - firstBlock},
                   {"unitsPerBlock", pieces.perBlock},
                   {"firstUnit", first % pieces.perBlock},
                   {"firstPosition", firstBlock * block}},
                  cycles::unitValues(end - first, g));
      }
      // {blocks, outputs, 8}: of a block all heads of eight components, then of the next eight.
      const Tensor all = partials[slot]
                             .reshape({std::size_t(context.parts()) * pieces.units, g, octet})
                             .slice(0, pieces.nUnits)
                             .reshape({nBlocks, nOutput, octet});
      const Tensor to = output[slot]
                            .reshape({g, pieces.perBlock, octet})
                            .dimShuffle({1, 0, 2})
                            .reshape({nOutput, octet});
      for (unsigned part = 0, first = 0; first < nOutput; ++part, first += perPart) {
        const unsigned end = std::min(first + perPart, nOutput);
        addVertex(
            context.graph, finish, "sparq::DenseOutput", context.tile(slot, part),
            {{"partials", all.slice(first, end, 1).flatten()},
             {"sums", scores.sums[slot][part]},
             {"output", to.slice(first, end).flatten()}},
            {{"n", end - first}, {"nBlocks", nBlocks}, {"groupSize", g}, {"firstHead", first % g}},
            cycles::denseOutput(nBlocks, end - first));
      }
    }
  }

  const Context &context;
  const Waves &waves;
  const ResidentRows &rows;
  const ResidentPieces &pieces;
  const unsigned g, d;
  const Scores scores;
};

Tensor buildResident(Graph &graph, const Cache &cache, const PlannedAttention &attention,
                     const Tensor &query, Sequence &program, const DebugContext &dc) {
  const Shape &shape = cache.plan.shape;
  const Placement &p = cache.plan.placement;
  const std::size_t g = shape.groupSize(), d = shape.headDim;
  std::map<std::string, Tensor> variables;
  // Eight components of a head are a unit; all are spread over the parts.
  const Tensor output = addSliced(graph, p, HALF, p.nTasks, d / octet * g,
                                  ceilDiv(d / octet * g, p.parts), octet, {dc, "output"})
                            .reshape({p.nTasks, d / octet, g, octet})
                            .dimShuffle({0, 2, 1, 3})
                            .reshape({p.nTasks, g, d});
  for (unsigned round = 0; round != p.nRounds; ++round) {
    const Context context{graph, cache, round, program, dc, variables};
    const std::size_t first = p.firstTask(round);
    Round(context, attention.waves).attend(query, output.slice(first, first + p.nActive(round), 0));
  }
  return output.reshape({shape.batch, shape.nHeads, shape.headDim});
}

} // namespace

const Kernel denseSram = [] {
  Kernel k;
  k.name = "dense-sram";
  k.op = "dense_attention";
  k.prefix = "dense";
  k.memory = Memory::sram;
  k.waves = oneWave;
  k.need = need;
  k.build = buildResident;
  return k;
}();

} // namespace sparq
