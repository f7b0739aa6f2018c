// SPDX-License-Identifier: Apache-2.0
//
// Dense decode attention from streaming memory: all scores, one softmax with the exact maximum,
// then all values. K is read once, V is read once.
#include "arith/scale.hpp"
#include "codelets/dense_scores.cycles.hpp"
#include "combine.hpp"
#include "sparq/step_names.hpp"
#include "stores/rows.hpp"
#include "waves.hpp"
#include "weighted_values.hpp"
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

// Brings the positions of a wave to the parts; {positions, headDim} of a part.
using OnPart = std::function<Tensor(unsigned slot, unsigned part)>;

class Streamed {
public:
  Streamed(const Context &context, const Waves &wavesIn)
      : waves(wavesIn), layout(context.layout()), landing(createRowWave(context, wavesIn)) {}
  OnPart keys(const Context &in, const WaveIndex &wave) {
    return read(in, 0, wave, steps::readKeyRows);
  }
  OnPart values(const Context &in, const WaveIndex &wave) {
    return read(in, layout.valueRow(), wave, steps::readValueRows);
  }

private:
  OnPart read(const Context &in, std::size_t firstRow, const WaveIndex &wave, const char *name) {
    readRows(in, waves, landing, firstRow, wave, name);
    return [this](unsigned slot, unsigned part) {
      const Piece own = piece(waves, part);
      return landing.rows[slot].slice(own.first, own.first + own.n);
    };
  }
  const Waves &waves;
  const CacheLayout &layout;
  const RowWave landing;
};

void denseRound(const Context &context, const Waves &waves, const Tensor &query,
                const Tensor &output) {
  const Placement &p = context.placement();
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
  const auto score = [&](const Context &in, const OnPart &keys) {
    const ComputeSet cs = in.execute("dense_scores");
    for (unsigned slot = 0; slot != in.nSlots(); ++slot)
      for (unsigned part = 0; part != p.parts && waves.room(part) != 0; ++part)
        addDenseScores(in, cs, waves, slot, part, wave, keys(slot, part), perPart, scores);
  };
  const auto accumulate = [&](const Context &in, const OnPart &values) {
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
  Streamed source(context, waves);
  score(forKeys, source.keys(forKeys, wave));
  accumulate(forValues, source.values(forValues, wave));
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

// Partial sums of the blocks of one part.
std::uint64_t partialBytes(const Plan &plan, const Waves &waves) {
  return std::uint64_t(waves.length / block) * plan.shape.groupSize() * plan.shape.headDim * 4;
}

std::uint64_t streamingNeed(const Plan &plan, const PlannedAttention &attention, unsigned) {
  const Waves &w = attention.waves;
  const std::uint64_t landing = std::uint64_t(w.length) * plan.shape.headDim * 2;
  return scoreBytes(plan, w) + landing + partialBytes(plan, w);
}

} // namespace

const Kernel denseStreaming = [] {
  Kernel k;
  k.name = "dense-streaming";
  k.op = "dense_attention";
  k.prefix = "dense";
  k.waves = streamingWaves;
  k.need = streamingNeed;
  k.build = build;
  return k;
}();

} // namespace sparq
