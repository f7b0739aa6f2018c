// SPDX-License-Identifier: Apache-2.0
#include "cycles.hpp"
#include "steps.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

constexpr unsigned block = 64;

// {parts, groupSize, local blocks} of a slot -> {groupSize, blocks}, ascending by position: by
// wave, then part, then block; then the tail.
Tensor ascending(const Tensor &blockSums, const Waves &waves) {
  const std::size_t parts = blockSums.dim(0), g = blockSums.dim(1);
  const std::size_t perWave = waves.length / block, inWaves = perWave * waves.nWaves;
  const Tensor ordered = blockSums.slice(0, inWaves, 2)
                             .reshape({parts, g, waves.nWaves, perWave})
                             .dimShuffle({1, 2, 0, 3})
                             .reshape({g, waves.nWaves * parts * perWave});
  if (waves.tailLength == 0)
    return ordered;
  const std::size_t inTail = waves.tailLength / block;
  const Tensor tail = blockSums.slice(inWaves, inWaves + inTail, 2)
                          .dimShuffle({1, 0, 2})
                          .reshape({g, parts * inTail});
  return concat(ordered, tail, 1);
}

} // namespace

Scores createScores(const Context &context, const Waves &waves) {
  const std::size_t g = context.groupSize(), n = waves.nLocal();
  Scores scores;
  scores.weights = context.perPart(FLOAT, {g, n}, "weights");
  scores.maxima = context.perPart(FLOAT, {6 * g}, "maxima");
  scores.maximum = context.perPart(FLOAT, {g}, "maximum");
  scores.blockSums = context.perPart(FLOAT, {g, n / block}, "block_sums");
  scores.sums = context.perPart(FLOAT, {g}, "sums");
  return scores;
}

void reduceMax(const Context &context, const Tensor &maxima, const Tensor &maximum) {
  const unsigned g = context.groupSize();
  const ComputeSet cs = context.execute("reduce_max");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    const Tensor all = maxima[slot].flatten();
    const unsigned nPartials = static_cast<unsigned>(all.numElements()) / g;
    for (unsigned part = 0; part != context.parts(); ++part)
      addVertex(context.graph, cs, "sparq::ReduceMax", context.tile(slot, part),
                {{"maxima", all}, {"maximum", maximum[slot][part]}},
                {{"nPartials", nPartials}, {"groupSize", g}},
                cycles::shared(g, nPartials * cycles::scalarStep));
  }
}

void softmax(const Context &context, const Waves &waves, const Scores &scores) {
  const unsigned g = context.groupSize(), n = waves.nLocal();
  const auto position = [&](unsigned part) {
    return std::vector<Setting>{{"groupSize", g},
                                {"nLocal", n},
                                {"part", part},
                                {"stride", waves.stride},
                                {"length", waves.length},
                                {"nWaves", waves.nWaves},
                                {"tailLength", waves.tailLength},
                                {"chunk", waves.chunk}};
  };
  const ComputeSet partial = context.execute("partial_max");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned part = 0; part != context.parts(); ++part)
      addVertex(context.graph, partial, "sparq::PartialMax", context.tile(slot, part),
                {{"filled", context.filled(slot)},
                 {"scores", scores.weights[slot][part].flatten()},
                 {"maxima", scores.maxima[slot][part]}},
                position(part), cycles::shared(n, g * cycles::scalarStep));
  reduceMax(context, scores.maxima, scores.maximum);
  const ComputeSet weights = context.execute("softmax_weights");
  const ComputeSet fold = context.execute("fold_sums");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    const Tensor blocks = ascending(scores.blockSums[slot], waves);
    const unsigned nBlocks = static_cast<unsigned>(blocks.dim(1));
    for (unsigned part = 0; part != context.parts(); ++part) {
      const unsigned tile = context.tile(slot, part);
      addVertex(context.graph, weights, "sparq::SoftmaxWeights", tile,
                {{"filled", context.filled(slot)},
                 {"maximum", scores.maximum[slot][part]},
                 {"weights", scores.weights[slot][part].flatten()},
                 {"blockSums", scores.blockSums[slot][part].flatten()}},
                position(part),
                cycles::shared(double(n) / block, g * (block / 8) * (cycles::weightLanes + 8)));
      addVertex(context.graph, fold, "sparq::FoldSums", tile,
                {{"blockSums", blocks.flatten()}, {"sums", scores.sums[slot][part]}},
                {{"nBlocks", nBlocks}, {"groupSize", g}}, cycles::shared(g, nBlocks * 2));
    }
  }
}

} // namespace sparq
