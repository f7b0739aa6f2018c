// SPDX-License-Identifier: Apache-2.0
//
// Dense decode attention over a cache in SRAM. Keys and values are spread evenly over all parts of
// a slot, each by units of its own, so that weights change tiles in between.
#include "codelets/attention.cycles.hpp"
#include "codelets/dense_resident.cycles.hpp"
#include "stores/rows.hpp"

namespace sparq {

namespace {

constexpr unsigned ofUnit = 2; // components

// One wave, all of the cache.
Waves oneWave(const Plan &plan, const Attention &, unsigned) {
  Waves w{};
  w.length = ResidentPieces(plan).positions;
  w.stride = plan.layout.capacity;
  w.nWaves = 1;
  w.chunk = 1;
  return w;
}

// Heads whose sums of blocks one part folds: as many as leave room for other things.
unsigned headsToFold(unsigned groupSize, unsigned nBlocks) {
  const auto most = static_cast<unsigned>(landingBudget / (nBlocks * sizeof(float)));
  return std::min(groupSize, std::max(1u, most));
}

std::uint64_t need(const Plan &plan, const PlannedAttention &attention, unsigned) {
  const ResidentPieces pieces(plan);
  const std::uint64_t g = plan.shape.groupSize(), parts = plan.placement.parts,
                      nBlocks = plan.layout.capacity / block,
                      blocks = ceilDiv(pieces.units, pieces.perBlock) + 1,
                      toSum = ceilDiv(nBlocks * g, parts) * block, // weights from other parts
      each = headsToFold(static_cast<unsigned>(g), static_cast<unsigned>(nBlocks)),
                      toFold = ceilDiv(ceilDiv(g, each), pieces.nValueParts) * each * nBlocks,
                      toOutput = ceilDiv(pieces.perBlock * g, parts) * nBlocks * ofUnit;
  return scoreBytes(plan, attention.waves) +
         4 * (g * (2 * plan.shape.headDim + pieces.units * ofUnit) +
              std::max({toSum, g * blocks * block + toFold, toOutput}));
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
    const std::string pairScores = ResidentRows::vertex("PairScores", context.layout());
    const Tensor spread = context.perPart(FLOAT, {std::size_t(heads) * d}, "spread_query");
    const ComputeSet spreads = context.execute("spread_query"), cs = context.execute("pair_scores");
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      for (unsigned part = 0; part != pieces.nKeyParts; ++part) {
        context.addVertex(spreads, "sparq::SpreadQuery", slot, part, cycles::spreadQuery(g, d),
                          "query"_f = query[slot][part], "spread"_f = spread[slot][part],
                          "groupSize"_f = g, "headDim"_f = d);
        context.addVertex(
            cs, pairScores.c_str(), slot, part,
            cycles::pairScores(pieces.positions, g, d, context.layout().wideRows),
            "filled"_f = context.filled(slot, part), "layer"_f = context.cache.layer[slot][part],
            "keys"_f = rows.keys[context.task(slot)][part], "spread"_f = spread[slot][part],
            "scores"_f = scores.weights[slot][part], "groupSize"_f = g, "headDim"_f = d,
            "length"_f = pieces.positions, "firstPosition"_f = part * pieces.positions,
            "scale"_f = attentionScale(d));
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
    const ComputeSet blocks = context.execute("block_sums"), cs = context.execute("unit_values"),
                     finish = context.execute("output");
    const unsigned nOutput = g * pieces.perBlock, perPart = ceilDiv(nOutput, context.parts()),
                   nBlocks = pieces.nUnits / pieces.perBlock, nSums = g * nBlocks,
                   ownSums = ceilDiv(nSums, context.parts()), each = headsToFold(g, nBlocks);
    const std::string unitValues = ResidentRows::vertex("UnitValues", context.layout());
    for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
      const Tensor ofHeads = ascending(scores.weights[slot], waves, 1)
                                 .slice(0, context.layout().capacity, 1)
                                 .reshape({g, nBlocks, block}),
                   ofBlocks = ofHeads.dimShuffle({1, 0, 2}),
                   sums = context.perPart(FLOAT, {ownSums}, "sums_of_blocks")[slot].flatten(),
                   partials = ofValueParts("partials", {pieces.units, g, ofUnit}, slot);
      for (unsigned part = 0, first = 0; first < nSums; ++part, first += ownSums) {
        const unsigned end = std::min(first + ownSums, nSums);
        context.addVertex(blocks, "sparq::BlockSums", slot, part, cycles::blockSums(end - first),
                          "weights"_f = ofHeads.flatten(0, 2).slice(first, end),
                          "blockSums"_f = sums.slice(first, end), "nBlocks"_f = end - first);
      }
      std::vector<Tensor> folded;
      for (unsigned first = 0, i = pieces.nValueParts; first < g; first += each) {
        i = (i != 0 ? i : pieces.nValueParts) - 1; // the last one has the fewest units
        const unsigned part = valuePart(i), end = std::min(first + each, g), n = end - first;
        folded.push_back(context.perPart(FLOAT, {g}, "sums")[slot][part].slice(first, end));
        context.addVertex(cs, "sparq::FoldSums", slot, part, cycles::foldSums(nBlocks, n),
                          "blockSums"_f = sums.slice(first * nBlocks, end * nBlocks),
                          "sums"_f = folded.back(), "nBlocks"_f = nBlocks, "groupSize"_f = n);
      }
      const Tensor total = concat(folded);
      for (unsigned i = 0; i != pieces.nValueParts; ++i) {
        const unsigned part = valuePart(i), first = i * pieces.units,
                       end = std::min(first + pieces.units, pieces.nUnits),
                       firstBlock = first / pieces.perBlock,
                       endBlock = ceilDiv(end, pieces.perBlock);
        context.addVertex(
            cs, unitValues.c_str(), slot, part,
            cycles::unitValues(end - first, pieces.perBlock, g, context.layout().wideRows),
            "filled"_f = context.filled(slot, part), "layer"_f = context.cache.layer[slot][part],
            "values"_f = rows.values[context.task(slot)][i],
            "weights"_f = ofBlocks.slice(firstBlock, endBlock),
            "partials"_f = partials[i].slice(0, end - first), "groupSize"_f = g,
            "layerUnits"_f = pieces.units, "nUnits"_f = end - first,
            "nBlocks"_f = endBlock - firstBlock, "unitsPerBlock"_f = pieces.perBlock,
            "firstUnit"_f = first % pieces.perBlock, "firstPosition"_f = firstBlock * block,
            "ofTwo"_f = ceilDiv((end - first) * (g / 2), cycles::nWorkers),
            "ofOne"_f = ceilDiv((end - first) * (g % 2), cycles::nWorkers));
      }
      // {outputs, blocks, 2}: all heads of two components, then of the next two.
      const Tensor all = partials.reshape({std::size_t(context.parts()) * pieces.units, g, ofUnit})
                             .slice(0, pieces.nUnits)
                             .reshape({nBlocks, nOutput, ofUnit})
                             .dimShuffle({1, 0, 2});
      const Tensor to = output[slot]
                            .reshape({g, pieces.perBlock, ofUnit})
                            .dimShuffle({1, 0, 2})
                            .reshape({nOutput, ofUnit});
      for (unsigned part = 0, first = 0; first < nOutput; ++part, first += perPart) {
        const unsigned end = std::min(first + perPart, nOutput);
        context.addVertex(finish, "sparq::DenseOutput", slot, part,
                          cycles::denseOutput(nBlocks, end - first),
                          "partials"_f = all.slice(first, end), "sums"_f = total,
                          "output"_f = to.slice(first, end), "n"_f = end - first,
                          "nBlocks"_f = nBlocks, "groupSize"_f = g, "firstHead"_f = first % g);
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

Tensor buildResident(const Steps &steps, const PlannedAttention &attention, const Tensor &query) {
  return addRounds(steps, [&](const Context &context, const Tensor &output) {
    Round(context, attention.waves).attend(query, output);
  });
}

} // namespace

const Kernel denseSram{"dense-sram", "dense_attention", "dense", Memory::sram, Takes::nothing,
                       false,        oneWave,           need,    buildResident};

} // namespace sparq
