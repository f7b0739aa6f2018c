// SPDX-License-Identifier: Apache-2.0
//
// Dense decode attention from streaming memory: all scores, one softmax with the exact maximum,
// then all values. K is read once, V is read once.
#include "codelets/attention.cycles.hpp"
#include "sparq/step_names.hpp"
#include "stores/rows.hpp"
#include <limits>

namespace sparq {

namespace {

// Rows of K or V in SRAM, a wave of them.
struct RowWave {
  Tensor offsets; // {slots, stride / positionsPerRow} UNSIGNED_INT
  Tensor rows;    // {slots, stride, headDim} HALF, position p on part p / length
  // The positions of one part, {n, headDim}.
  Tensor of(const Waves &waves, unsigned slot, unsigned part) const {
    const unsigned first = part * waves.length;
    return rows[slot].slice(first, first + waves.room(part));
  }
};

RowWave createRowWave(const Context &context, const Waves &waves) {
  const unsigned perRow = context.layout().positionsPerRow;
  return {
      context.sliced(UNSIGNED_INT, waves.stride / perRow, waves.length / perRow, 1, "row_offsets")
          .squeeze({2}),
      context.sliced(HALF, waves.stride, waves.length, context.headDim(), "rows")};
}

// Reads the rows of the current wave: of the keys, or, `firstRow` behind them, of the values.
void readRows(const Context &context, const Waves &waves, const RowWave &landing,
              std::size_t firstRow, const WaveIndex &wave, const char *name) {
  const CacheLayout &layout = context.layout();
  const unsigned perRow = layout.positionsPerRow;
  const ComputeSet cs = context.execute("row_offsets");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    const auto rowBase = static_cast<unsigned>(firstRow + layout.keyRow(context.task(slot), 0));
    for (unsigned part = 0; part != context.parts(); ++part) {
      const unsigned room = waves.room(part), first = part * waves.length / perRow;
      if (room == 0)
        break;
      context.addVertex(cs, "sparq::RowOffsets", slot, part, cycles::rowOffsets(room / perRow),
                        "wave"_f = wave.on(slot, part), "layer"_f = context.cache.layer[slot][part],
                        "rows"_f = landing.offsets[slot].slice(first, first + room / perRow),
                        "nRows"_f = room / perRow, "rowsPerWave"_f = waves.stride / perRow,
                        "firstRow"_f = rowBase + first,
                        "lastRow"_f = rowBase + (layout.capacity - 1) / perRow,
                        "layerRows"_f = context.cache.layerRows());
    }
  }
  const std::size_t nRows = std::size_t(context.nSlots()) * waves.stride / perRow;
  context.cache.lockstep->read(
      storeOf<SplitRows>(context.cache).buffer(),
      context.active(landing.rows).reshape({nRows, std::size_t(perRow) * context.headDim()}),
      context.active(landing.offsets).flatten(), context.program, {context.dc, name});
}

// Keys of a wave to scores.
void addDenseScores(const Context &context, const Waves &waves, const WaveIndex &wave,
                    const RowWave &keys, const Tensor &query, const Scores &scores) {
  const unsigned g = context.groupSize(), d = context.headDim();
  const ComputeSet cs = context.execute("dense_scores");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned part = 0; part != context.parts() && waves.room(part) != 0; ++part)
      context.addVertex(
          cs, "sparq::DenseScores", slot, part, cycles::denseScores(waves.room(part), g, d),
          "filled"_f = context.filled(slot, part), "wave"_f = wave.on(slot, part),
          "keys"_f = keys.of(waves, slot, part), "query"_f = query[slot][part],
          "scores"_f = scores.weights[slot][part], "groupSize"_f = g, "headDim"_f = d,
          "partPositions"_f = waves.partPositions(), "part"_f = part, "stride"_f = waves.stride,
          "length"_f = waves.length, "nWaves"_f = waves.nWaves, "scale"_f = attentionScale(d));
}

// {slots, groupSize, headDim} FLOAT, components spread over the parts as in Placement.
Tensor createAccumulator(const Context &context) {
  // Laid out {slots, headDim / 8, groupSize, 8}, so that a part's components of all heads are one
  // piece.
  const std::size_t d = context.headDim(), g = context.groupSize();
  const Placement &p = context.placement();
  return context.sliced(FLOAT, d / 8, p.width / 8, g * 8, "accumulator")
      .reshape({p.slots, d / 8, g, 8})
      .dimShuffle({0, 2, 1, 3})
      .reshape({p.slots, g, d});
}

// Folds partials {slots, blocks, groupSize, headDim} into the accumulator.
void foldBlocks(const Context &context, const WaveIndex &wave, const Tensor &partials,
                const Tensor &accumulator) {
  const Placement &p = context.placement();
  const unsigned g = context.groupSize(), d = context.headDim(),
                 nBlocks = static_cast<unsigned>(partials.dim(1));
  const ComputeSet cs = context.execute("fold_blocks");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned slice = 0; slice != p.nSlices; ++slice) {
      const unsigned first = slice * p.width, end = std::min(first + p.width, d);
      context.addVertex(
          cs, "sparq::FoldBlocks", slot, slice, cycles::foldBlocks(nBlocks, end - first, g),
          "wave"_f = wave.on(slot, slice), "partials"_f = partials[slot].slice(first, end, 2),
          "accumulator"_f = accumulator[slot].slice(first, end, 1), "nBlocks"_f = nBlocks,
          "groupSize"_f = g, "width"_f = end - first);
    }
}

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
  const Tensor accumulator = context.begin(createAccumulator(context));
  loadQuery(context, query, perPart);
  Sequence keyWave({}, {context.dc, "key_wave"}), valueWave({}, {context.dc, "value_wave"});
  const Context forKeys = context.within(keyWave), forValues = context.within(valueWave);
  const RowWave landing = createRowWave(context, waves);
  readRows(forKeys, waves, landing, 0, wave, steps::readKeyRows);
  addDenseScores(forKeys, waves, wave, landing, perPart, scores);
  readRows(forValues, waves, landing, context.layout().valueRow(), wave, steps::readValueRows);
  const ComputeSet sum = forValues.execute("weighted_values");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned part = 0; part != p.parts && waves.room(part) != 0; ++part) {
      const unsigned firstBlock = part * blocksPerPart;
      addWeightedValues(forValues, sum, slot, part, wave,
                        {part * waves.length, waves.stride, std::numeric_limits<unsigned>::max(),
                         waves.partPositions(), waves.length},
                        landing.of(waves, slot, part), scores.weights[slot][part],
                        partials[slot].slice(firstBlock, firstBlock + waves.room(part) / 64));
    }
  foldBlocks(forValues, wave, partials.slice(0, waves.stride / 64, 1), accumulator);
  addWaveLoop(context, waves, wave, keyWave);
  softmax(context, waves, scores);
  addWaveLoop(context, waves, wave, valueWave);
  combineDense(context, accumulator, scores, output);
}

Tensor build(const Steps &steps, const PlannedAttention &attention, const Tensor &query) {
  return addRounds(steps, [&](const Context &context, const Tensor &output) {
    denseRound(context, attention.waves, query, output);
  });
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

std::uint64_t streamingNeed(const Plan &plan, const PlannedAttention &attention, unsigned) {
  const Waves &w = attention.waves;
  const std::uint64_t d = plan.shape.headDim, landing = w.length * d * 2,
                      partials = std::uint64_t(w.length / block) * plan.shape.groupSize() * d * 4;
  return scoreBytes(plan, w) + landing + partials;
}

} // namespace

const Kernel denseStreaming{"dense-streaming", "dense_attention", "dense",
                            Memory::streaming, Takes::nothing,    false,
                            streamingWaves,    streamingNeed,     build};

} // namespace sparq
