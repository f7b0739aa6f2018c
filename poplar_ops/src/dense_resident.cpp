// SPDX-License-Identifier: Apache-2.0
//
// Dense decode attention over a cache in SRAM. Keys and values are spread evenly over all parts of
// a slot, each by units of its own, so that weights change tiles in between.
#include "arith/scale.hpp"
#include "codelets/attention.cycles.hpp"
#include "codelets/dense_resident.cycles.hpp"
#include "query_components.hpp"
#include "softmax.hpp"
#include "stores/rows.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

constexpr unsigned quad = 4, pairs = quad / 2; // components of a unit, and pairs of them

// One wave, all of the cache.
Waves oneWave(const Plan &plan, const Attention &, unsigned) {
  Waves w{};
  w.length = ResidentPieces(plan).positions;
  w.stride = plan.layout.capacity;
  w.nWaves = 1;
  w.chunk = 1;
  return w;
}

std::uint64_t need(const Plan &plan, const PlannedAttention &attention, unsigned) {
  const ResidentPieces pieces(plan);
  const std::uint64_t g = plan.shape.groupSize(), d = plan.shape.headDim,
                      blocks = ceilDiv(pieces.units, pieces.perBlock) + 1,
                      sums = ceilDiv(plan.layout.capacity / block * g, plan.placement.parts);
  return scoreBytes(plan, attention.waves) + 4 * sums * block +
         4 * g * (blocks * block + 2 * d + pieces.units * quad);
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
    softmaxWeights(context, waves, scores, true);
    sum(output);
  }

private:
  void score(const Tensor &query) const {
    const unsigned heads = (g + 1) / 2 * 2;
    const Tensor spread = context.perPart(FLOAT, {std::size_t(heads) * d}, "spread_query");
    const ComputeSet spreads = context.execute("spread_query"), cs = context.execute("pair_scores");
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
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
                   {"scores", scores.weights[slot][part].flatten()}},
                  {{"groupSize", g},
                   {"headDim", d},
                   {"length", pieces.positions},
                   {"firstPosition", part * pieces.positions},
                   {"scale", attentionScale(d)}},
                  cycles::pairScores(pieces.positions, g, d));
      }
  }

  unsigned valuePart(unsigned i) const { return (pieces.firstValuePart + i) % context.parts(); }
  // {parts, ...} of a slot, from the first part with values on.
  Tensor ofValueParts(const char *name, const std::vector<std::size_t> &shape,
                      unsigned slot) const {
    const Tensor all = context.perPart(FLOAT, shape, name)[slot];
    const unsigned first = pieces.firstValuePart;
    return first == 0 ? all : concat({all.slice(first, context.parts()), all.slice(0, first)});
  }

  void sum(const Tensor &output) const {
    const ComputeSet cs = context.execute("unit_values"), finish = context.execute("output");
    const unsigned nOutput = g * pieces.perBlock, perPart = ceilDiv(nOutput, context.parts()),
                   nBlocks = pieces.nUnits / pieces.perBlock, nSums = g * nBlocks,
                   ownSums = ceilDiv(nSums, context.parts());
    for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
      const Tensor ofHeads = ascending(scores.weights[slot], waves, 1)
                                 .slice(0, context.layout().capacity, 1)
                                 .reshape({g, nBlocks, block}),
                   ofBlocks = ofHeads.dimShuffle({1, 0, 2}),
                   sums = ofValueParts("sums_of_blocks", {ownSums}, slot).flatten(),
                   partials = ofValueParts("partials", {pieces.units, g, quad}, slot);
      for (unsigned part = 0, first = 0; first < nSums; ++part, first += ownSums) {
        const unsigned end = std::min(first + ownSums, nSums);
        addVertex(context.graph, cs, "sparq::BlockSums", context.tile(slot, valuePart(part)),
                  {{"weights", ofHeads.flatten(0, 2).slice(first, end).flatten()},
                   {"blockSums", sums.slice(first, end)}},
                  {{"nBlocks", end - first}}, cycles::blockSums(end - first));
      }
      for (unsigned i = 0; i != pieces.nValueParts; ++i) {
        const unsigned part = valuePart(i), first = i * pieces.units,
                       end = std::min(first + pieces.units, pieces.nUnits),
                       firstBlock = first / pieces.perBlock,
                       endBlock = ceilDiv(end, pieces.perBlock);
        addVertex(context.graph, cs, "sparq::UnitValues", context.tile(slot, part),
                  {{"filled", context.filled(slot, part)},
                   {"layer", context.cache.layer[slot][part]},
                   {"values", rows.values[context.task(slot)][i].flatten()},
                   {"weights", ofBlocks.slice(firstBlock, endBlock).flatten()},
                   {"partials", partials[i].slice(0, end - first).flatten()}},
                  {{"groupSize", g},
                   {"layerUnits", pieces.units},
                   {"nUnits", end - first},
                   {"nBlocks", endBlock - firstBlock},
                   {"unitsPerBlock", pieces.perBlock},
                   {"firstUnit", first % pieces.perBlock},
                   {"firstPosition", firstBlock * block},
                   {"ofTwo", ceilDiv((end - first) * pairs * (g / 2), cycles::nWorkers)},
                   {"ofOne", ceilDiv((end - first) * pairs * (g % 2), cycles::nWorkers)}},
                  cycles::unitValues(end - first, pieces.perBlock, g));
      }
      // {blocks, outputs, 4}: of a block all heads of four components, then of the next four.
      const Tensor all = partials.reshape({std::size_t(context.parts()) * pieces.units, g, quad})
                             .slice(0, pieces.nUnits)
                             .reshape({nBlocks, nOutput, quad});
      const Tensor to = output[slot]
                            .reshape({g, pieces.perBlock, quad})
                            .dimShuffle({1, 0, 2})
                            .reshape({nOutput, quad});
      for (unsigned part = 0, first = 0; first < nOutput; ++part, first += perPart) {
        const unsigned end = std::min(first + perPart, nOutput);
        const bool one = end - first == 1; // head
        const unsigned head = first % g;
        addVertex(context.graph, finish, "sparq::DenseOutput", context.tile(slot, part),
                  {{"partials", all.slice(first, end, 1).flatten()},
                   {"sums",
                    one ? sums.slice(head * nBlocks, (head + 1) * nBlocks) : sums.slice(0, nSums)},
                   {"output", to.slice(first, end).flatten()}},
                  {{"n", end - first},
                   {"nBlocks", nBlocks},
                   {"groupSize", one ? 1u : g},
                   {"firstHead", one ? 0u : head}},
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
  std::map<std::string, Tensor> variables;
  const Tensor output = createOutput(graph, cache, {dc, "output"});
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
