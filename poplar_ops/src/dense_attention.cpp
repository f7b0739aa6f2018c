// SPDX-License-Identifier: Apache-2.0
//
// Dense decode attention: all scores, one softmax with the exact maximum, then all values. K is
// read once, V is read once.
#include "arith/scale.hpp"
#include "planning.hpp"
#include "steps.hpp"
#include "vertex_cycles.hpp"
#include <limits>

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

// Keys {positions of a part, headDim} of a slot to scores.
void addDenseScores(const Context &context, const ComputeSet &cs, const Waves &waves, unsigned slot,
                    unsigned part, const WaveIndex &wave, const Tensor &keys, const Tensor &query,
                    const Scores &scores) {
  const unsigned g = context.groupSize(), d = context.headDim();
  addVertex(context.graph, cs, "sparq::DenseScores", context.tile(slot, part),
            {{"filled", context.filled(slot, part)},
             {"wave", wave.on(slot, part)},
             {"keys", keys.flatten()},
             {"query", query[slot][part]},
             {"scores", scores.weights[slot][part].flatten()}},
            {{"groupSize", g},
             {"headDim", d},
             {"partPositions", waves.partPositions()},
             {"part", part},
             {"stride", waves.stride},
             {"length", waves.length},
             {"nWaves", waves.nWaves},
             {"scale", attentionScale(d)}},
            cycles::denseScores(static_cast<double>(keys.dim(0)), g, d));
}

// The positions of a wave on one part: where they start, and where they are weighted.
struct Piece {
  unsigned first, n;
};

Piece piece(const Waves &waves, unsigned part) { return {part * waves.length, waves.room(part)}; }

void denseRound(const Context &context, const Waves &waves, const Tensor &query,
                const Tensor &output) {
  const Placement &p = context.placement();
  const Cache &cache = context.cache;
  const unsigned g = context.groupSize(), d = context.headDim();
  const WaveIndex wave = context.waveIndex(waves.nWaves);
  const Tensor perPart = createQuery(context);
  const Scores scores = createScores(context, waves);
  const unsigned blocksPerPart = waves.length / 64;
  // {slots, parts * blocks, groupSize, headDim}; blocks beyond a part's positions are never
  // written, so never folded either.
  const Tensor partials = context.perPart(FLOAT, {blocksPerPart, g, d}, "partials")
                              .reshape({p.slots, std::size_t(p.parts) * blocksPerPart, g, d});
  const Tensor accumulator = context.begin(createByComponent(context, FLOAT, "accumulator"));

  // Adds the vertices of one stage; values(slot, part) are the positions on that part.
  const auto score = [&](const Context &in, const auto &keys) {
    const ComputeSet cs = in.execute("dense_scores");
    for (unsigned slot = 0; slot != in.nSlots(); ++slot)
      for (unsigned part = 0; part != p.parts && waves.room(part) != 0; ++part)
        addDenseScores(in, cs, waves, slot, part, wave, keys(slot, part), perPart, scores);
  };
  const auto accumulate = [&](const Context &in, const auto &values) {
    const ComputeSet cs = in.execute("weighted_values");
    for (unsigned slot = 0; slot != in.nSlots(); ++slot)
      for (unsigned part = 0; part != p.parts && waves.room(part) != 0; ++part) {
        const Piece own = piece(waves, part);
        const unsigned firstBlock = part * blocksPerPart, nBlocks = own.n / 64;
        addWeightedValues(in, cs, slot, part, wave,
                          {own.first, waves.stride, std::numeric_limits<unsigned>::max(),
                           waves.partPositions(), waves.length},
                          values(slot, part), scores.weights[slot][part],
                          partials[slot].slice(firstBlock, firstBlock + nBlocks));
      }
    foldBlocks(in, wave, partials.slice(0, waves.stride / 64, 1), accumulator);
  };

  loadQuery(context, query, perPart);
  Sequence keyWave({}, {context.dc, "key_wave"}), valueWave({}, {context.dc, "value_wave"});
  const Context forKeys = context.within(keyWave), forValues = context.within(valueWave);
  if (cache.plan.resident) {
    const auto of = [&](const Tensor &resident) {
      return [&, resident](unsigned slot, unsigned part) {
        return resident[context.task(slot)].slice(piece(waves, part).first,
                                                  piece(waves, part).first + waves.room(part));
      };
    };
    score(forKeys, of(cache.keys));
    accumulate(forValues, of(cache.values));
  } else {
    const RowWave landing = createRowWave(context, waves);
    const auto landed = [&](unsigned slot, unsigned part) {
      return landing.rows[slot].slice(piece(waves, part).first,
                                      piece(waves, part).first + waves.room(part));
    };
    readRows(forKeys, waves, landing, 0, wave, "read_key_rows");
    score(forKeys, landed);
    readRows(forValues, waves, landing, cache.layout().valueRow(), wave, "read_value_rows");
    accumulate(forValues, landed);
  }
  addWaveLoop(context, waves, wave, keyWave);
  softmax(context, waves, scores);
  addWaveLoop(context, waves, wave, valueWave);
  combineDense(context, accumulator, scores, output);
}

Tensor build(Graph &graph, const Cache &cache, const PlannedAttention &attention,
             const Tensor &query, Sequence &program, const DebugContext &dc) {
  const Shape &shape = cache.plan.shape;
  const Placement &p = cache.plan.placement;
  std::map<std::string, Tensor> variables;
  const Tensor output = createOutput(graph, cache, {dc, "output"});
  for (unsigned round = 0; round != p.nRounds; ++round) {
    const Context context{graph, cache, round, program, dc, variables};
    const std::size_t first = p.firstTask(round);
    denseRound(context, attention.waves, query, output.slice(first, first + p.nActive(round), 0));
  }
  return output.reshape({shape.batch, shape.nHeads, shape.headDim});
}

Waves streamingWaves(const Plan &plan, const Attention &, unsigned) {
  Waves w{};
  const unsigned nBlocks = plan.layout.capacity / block;
  const unsigned most =
      std::max<std::uint64_t>(1, landingBudget / (plan.shape.headDim * 2 * block)) *
      plan.placement.parts;
  const unsigned blocks = unitsPerWave(nBlocks, std::min(most, nBlocks));
  w.stride = blocks * block;
  w.length = partLength(w.stride, plan.placement.parts);
  w.nWaves = ceilDiv(nBlocks, blocks);
  w.chunk = 1;
  return w;
}

// One wave, all of the cache.
Waves residentWaves(const Plan &plan, const Attention &, unsigned) {
  Waves w{};
  w.length = partLength(plan.layout.capacity, plan.placement.parts);
  w.stride = plan.layout.capacity;
  w.nWaves = 1;
  w.chunk = 1;
  return w;
}

// Partial sums of the blocks of one part.
std::uint64_t partialBytes(const Plan &plan, const Waves &waves) {
  return std::uint64_t(waves.length / block) * plan.shape.groupSize() * plan.shape.headDim * 4;
}

TileNeed streamingNeed(const Plan &plan, const PlannedAttention &attention, unsigned) {
  const Waves &w = attention.waves;
  const std::uint64_t landing = std::uint64_t(w.length) * plan.shape.headDim * 2;
  return {scoreBytes(plan, w) + landing + partialBytes(plan, w), 0};
}

TileNeed residentNeed(const Plan &plan, const PlannedAttention &attention, unsigned) {
  const Waves &w = attention.waves;
  return {scoreBytes(plan, w) + partialBytes(plan, w),
          std::uint64_t(w.length) * plan.shape.headDim * 4 * plan.placement.nRounds};
}

} // namespace

const Kernel denseSram{"dense-sram", "dense_attention", "dense",      Memory::sram, false,
                       false,        residentWaves,     residentNeed, build};
const Kernel denseStreaming{
    "dense-streaming", "dense_attention", "dense", Memory::streaming, false, false,
    streamingWaves,    streamingNeed,     build};

} // namespace sparq
