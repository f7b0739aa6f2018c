// SPDX-License-Identifier: Apache-2.0
//
// SparQ decode attention (arXiv:2312.04985, Algorithm 1; docs/exactness.md E6): the steps in order.
#include "sparq/attention.hpp"
#include "steps.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

Tensor sparqAttention(Graph &graph, const Cache &cache, const Tensor &query,
                      const SparqSettings &settings, std::size_t index, Sequence &program,
                      const DebugContext &dc) {
  const Shape &shape = cache.plan.shape;
  const Placement &p = cache.plan.placement;
  check("sparq_attention", settings, shape);
  checkTensor("sparq_attention", "query", query, HALF, {shape.batch, shape.nHeads, shape.headDim});
  if (cache.resident || index >= cache.plan.sparq.size())
    throw Error("sparq_attention: cache must be planned for these settings, got entry " +
                std::to_string(index) + " of " + std::to_string(cache.plan.sparq.size()));
  const Waves &waves = cache.plan.sparq[index];
  std::map<std::string, Tensor> variables;
  const Tensor output = createOutput(graph, cache, {dc, "output"});
  for (unsigned round = 0; round != p.nRounds; ++round) {
    const Context context{graph, cache, round, program, dc, variables};
    const std::size_t first = p.firstTask(round);
    const WaveIndex wave = context.waveIndex(waves.nWaves), onlyWave = context.waveIndex(1);
    // Step 1: where the query is largest.
    const QueryComponents q = createQueryComponents(context, settings);
    loadQuery(context, query, q.query);
    selectComponents(context, settings, q);
    // Step 2: approximate scores of all positions, their softmax, the best positions.
    const Scores scores = createScores(context, waves);
    approxScores(context, settings, waves, q, wave, scores);
    softmax(context, waves, scores);
    const Tensor rows = selectPositions(context, settings, waves, scores);
    // Step 3: exact attention over these, and the mean value for the rest.
    const Gathered gathered = gatheredAttention(context, settings, q, scores, rows, onlyWave);
    combine(context, settings.meanValue, gathered, scores,
            output.slice(first, first + p.nActive(round), 0));
  }
  return output.reshape({shape.batch, shape.nHeads, shape.headDim});
}

} // namespace sparq
