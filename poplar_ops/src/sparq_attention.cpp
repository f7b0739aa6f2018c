// SPDX-License-Identifier: Apache-2.0
//
// SparQ decode attention (arXiv:2312.04985, Algorithm 1; docs/exactness.md E6): the steps in order,
// over whatever stores the cache has. All give the same bits.
#include "stores/index.hpp"
#include "stores/rows.hpp"

namespace sparq {

namespace {

// A wave that reads less than this costs more in fixed overhead than its granularity saves.
constexpr std::uint64_t minWaveBytes = 2 * 1024 * 1024;
constexpr unsigned targetWaves = 4;

Tensor build(const Steps &steps, const PlannedAttention &attention, const Tensor &query) {
  const SparqSettings &settings = attention.settings;
  const Waves &waves = attention.waves;
  const Index &index = storeOf<Index>(steps.cache);
  const ListRows &rows = storeOf<ListRows>(steps.cache);
  return addRounds(steps, [&](const Context &context, const Tensor &output) {
    // E6.1: where the query is largest.
    const QueryComponents q = createQueryComponents(context, settings);
    index.loadQuery(context, waves, query, q);
    const ComputeSet list = selectComponents(context, settings, q, index.columnStep());
    if (!index.makesTemperatures())
      addTemperatures(context, list, q);
    // E6.2 and E6.3: approximate scores of all positions, their softmax, the best positions.
    const Scores scores = createScores(context, waves);
    index.score(context, settings, waves, q, scores);
    softmax(context, waves, scores);
    const Selected selected = selectPositions(context, settings, waves, scores, rows);
    // E6.4 and E6.5: exact attention over these, and the mean value for the rest.
    const Gathered gathered = rows.attend(context, waves, q, selected);
    combine(context, settings.meanValue, gathered, scores, output);
  });
}

Waves streamingWaves(const Plan &plan, const Attention &attention, unsigned nTiles) {
  const CacheLayout &layout = plan.layout;
  const Placement &p = plan.placement;
  Waves w{};
  const std::uint64_t chunkBytes =
      layout.columnBytes(layout.chunk) * attention.settings.rank; // of one slot
  // As few waves as make the granularity worth while, within the landing budget (all tiles share
  // the landing rows).
  const unsigned least = ceilDiv(minWaveBytes, chunkBytes * p.slots);
  const unsigned most = std::max<std::uint64_t>(1, landingBudget * nTiles / (chunkBytes * p.slots));
  const unsigned chunks = unitsPerWave(
      layout.nChunks(),
      std::min({std::max(least, ceilDiv(layout.nChunks(), targetWaves)), most, layout.nChunks()}));
  w.stride = chunks * layout.chunk;
  w.length = partLength(w.stride, p.parts);
  w.nWaves = ceilDiv(layout.nChunks(), chunks);
  w.tailLength = layout.tailLength;
  w.tailFirst = layout.tailFirst;
  w.chunk = layout.chunk;
  return w;
}

std::uint64_t streamingNeed(const Plan &plan, const PlannedAttention &attention, unsigned nTiles) {
  const Placement &p = plan.placement;
  const Waves &w = attention.waves;
  const std::uint64_t g = plan.shape.groupSize(), d = plan.shape.headDim,
                      r = attention.settings.rank,
                      k = std::min(attention.settings.topK, plan.layout.capacity);
  const CacheLayout &layout = plan.layout;
  // An index has a coefficient a component, head and block too.
  const std::uint64_t blocks = layout.quantised() ? (w.length + w.tailLength) / block : 0,
                      landing = layout.columnBytes(w.stride) * r * p.slots / nTiles,
                      columns = layout.columnBytes(w.length) * r + blocks * g * (r + 2) * 4,
                      selected = ceilDiv(k, p.parts) * d * 2 * 3 + k * g * 8,
                      partials = ceilDiv(k, block) * g * p.width * 4,
                      marks = (std::uint64_t(w.nWaves) * w.stride + w.chunk) / 32 * 16;
  return scoreBytes(plan, w) + landing + columns + layout.scoredBytes() + selected + partials +
         marks;
}

// All positions at once, each part its own; the open block on the last part.
Waves tieredWaves(const Plan &plan, const Attention &, unsigned) {
  Waves w{};
  w.stride = plan.layout.capacity;
  w.length = partLength(plan.layout.capacity, plan.placement.parts);
  w.nWaves = 1;
  w.tailLength = plan.layout.tailLength;
  w.tailFirst = plan.layout.tailFirst;
  w.chunk = plan.layout.chunk;
  return w;
}

std::uint64_t tieredNeed(const Plan &plan, const PlannedAttention &attention, unsigned) {
  const Waves &w = attention.waves;
  const HotRows &hot = plan.hot;
  const CacheLayout &layout = plan.layout;
  const std::uint64_t g = plan.shape.groupSize(), r = attention.settings.rank,
                      k = std::min(attention.settings.topK, layout.capacity);
  const std::uint64_t marks = layout.capacity / 32 * 16, lists = k * (6 + 3 * g) * 4,
                      pieces = std::uint64_t(std::max(hot.listRows(), hot.headRows)) *
                               hot.partBytes(plan.shape.headDim, plan.placement.parts),
                      nRows = w.length / block * g, nPairs = w.length / block * ceilDiv(g, 2),
                      coefficients = scoredByGroup(plan) ? nPairs * 8 * r + nRows * 8 + 6 * 32 * r
                                                         : nRows * (4 * r + 8);
  return scoreBytes(plan, w) + marks + lists + pieces + coefficients;
}

} // namespace

const Kernel sparqStreaming{"sparq-streaming", "sparq_attention", "sparq",
                            Memory::streaming, Takes::sparq,      true,
                            streamingWaves,    streamingNeed,     build};
const Kernel sparqTiered{"sparq-tiered", "sparq_attention", "sparq",
                         Memory::tiered, Takes::sparq,      true,
                         tieredWaves,    tieredNeed,        build};

} // namespace sparq
