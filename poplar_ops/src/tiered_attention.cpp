// SPDX-License-Identifier: Apache-2.0
//
// SparQ decode attention over a cache in three tiers: the steps in order. The same bits as from one in
// streaming memory (docs/exactness.md E6, E9).
#include "planning.hpp"
#include "tiers.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

Tensor build(Graph &graph, const Cache &cache, const PlannedAttention &attention,
             const Tensor &query, Sequence &program, const DebugContext &dc) {
  const Shape &shape = cache.plan.shape;
  const Placement &p = cache.plan.placement;
  const SparqSettings &settings = attention.settings;
  const Waves &waves = attention.waves;
  std::map<std::string, Tensor> variables;
  const Tensor output = createOutput(graph, cache, {dc, "output"});
  for (unsigned round = 0; round != p.nRounds; ++round) {
    const Context context{graph, cache, round, program, dc, variables};
    const std::size_t first = p.firstTask(round);
    // E6.1: where the query is largest.
    const QueryComponents q = createQueryComponents(context, settings);
    loadQuery(context, query, q.query);
    selectComponents(context, settings, q);
    // E6.2 and E6.3: approximate scores of all positions, their softmax, the best positions.
    const Scores scores = createScores(context, waves);
    residentScores(context, settings, waves, q, scores);
    softmax(context, waves, scores);
    const Selected selected =
        selectPositions(context, settings, waves, scores, Selected::Entries::positions);
    const Tensor slots = makeHot(context, selected.rows.slice(0, 1, 1).squeeze({1}));
    // E6.4 and E6.5: exact attention over these, and the mean value for the rest.
    const Gathered gathered = hotAttention(context, waves, q, selected, slots);
    combine(context, settings.meanValue, gathered, scores,
            output.slice(first, first + p.nActive(round), 0));
  }
  return output.reshape({shape.batch, shape.nHeads, shape.headDim});
}

// All positions at once, each part its own; the open block on the last part.
Waves planWaves(const Plan &plan, const Attention &, unsigned) {
  Waves w{};
  w.stride = plan.layout.capacity;
  w.length = residentLength(plan);
  w.nWaves = 1;
  w.tailLength = plan.layout.tailLength;
  w.tailFirst = plan.layout.tailFirst;
  w.chunk = plan.layout.chunk;
  return w;
}

TileNeed planNeed(const Plan &plan, const PlannedAttention &attention, unsigned) {
  const Waves &w = attention.waves;
  const HotRows &hot = plan.hot;
  const CacheLayout &layout = plan.layout;
  const std::uint64_t g = plan.shape.groupSize(), r = attention.settings.rank,
                      k = std::min(attention.settings.topK, layout.capacity);
  const std::uint64_t marks = layout.capacity / 32 * 16, lists = k * (6 + 3 * g) * 4,
                      pieces = std::uint64_t(std::max(hot.groupRows(), hot.headRows)) *
                               hot.partBytes(plan.shape.headDim, plan.placement.parts),
                      nRows = w.length / block * g,
                      coefficients = scoredByGroup(plan) ? nRows * (8 * r + 12) + 6 * 16 * r
                                                         : nRows * (4 * r + 8);
  const bool first = &attention == &plan.attention.front(); // of all programs
  return {scoreBytes(plan, w) + marks + lists + pieces + coefficients,
          first ? tieredCacheBytes(plan) : 0};
}

} // namespace

const Kernel sparqTiered{"sparq-tiered", "sparq_attention", "sparq",  Memory::tiered, true,
                         true,           planWaves,         planNeed, build};

} // namespace sparq
