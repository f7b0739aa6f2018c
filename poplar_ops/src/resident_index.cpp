// SPDX-License-Identifier: Apache-2.0
#include "../codelets/key_index.hpp"
#include "planning.hpp"
#include "tiers.hpp"
#include "vertex_cycles.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

// The block that is being filled, on the part that scores it: {slots, headDim, 64} HALF.
Tensor gatherOpenBlock(const Context &context, unsigned part) {
  const Placement &p = context.placement();
  const Tensor open = context.once("open_block", [&] {
    const Tensor t =
        context.graph.addVariable(HALF, {p.slots, context.headDim(), block}, {context.dc, "open"});
    for (unsigned slot = 0; slot != p.slots; ++slot)
      context.graph.setTileMapping(t[slot], p.tile(slot, part));
    return t;
  });
  const unsigned first = context.task(0);
  context.program.add(Copy(context.cache.tail.slice(first, first + context.nSlots(), 0),
                           context.active(open), false, {context.dc, "gather_open_block"}));
  return open;
}

} // namespace

bool scoredByGroup(const Plan &plan) {
  return plan.layout.indexBits == 4 && plan.shape.groupSize() > 1;
}

void residentScores(const Context &context, const SparqSettings &settings, const Waves &waves,
                    const QueryComponents &q, const Scores &scores) {
  const CacheLayout &layout = context.layout();
  const unsigned g = context.groupSize(), r = settings.rank, bits = layout.indexBits,
                 d = context.headDim(), nBlocks = waves.length / block, last = waves.tailFirst,
                 columnWords = static_cast<unsigned>(layout.columnElements(waves.length));
  const bool byGroup = scoredByGroup(context.plan());
  const Tensor coefficients = byGroup ? context.perPart(HALF, {nBlocks, g, r, 4}, "coefficients")
                                      : context.perPart(INT, {nBlocks, g, r}, "coefficients"),
               units = context.perPart(FLOAT, {nBlocks, g}, "units"),
               offsets = context.perPart(FLOAT, {nBlocks, g}, "offsets"),
               columns = context.perPart(UNSIGNED_INT, {r}, "columns");
  Tensor biases, codes;
  if (byGroup) {
    biases = context.perPart(FLOAT, {nBlocks, g}, "biases");
    codes = context.perPart(HALF, {cycles::nWorkers, r, 8}, "codes");
  }
  const Tensor open = gatherOpenBlock(context, last);
  const ComputeSet coefficient = context.execute("block_coefficients"),
                   score = context.execute("approx_scores");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    // On a part of its own beside the others, else before them: they write to one tensor.
    addVertex(context.graph, last < waves.nWaveParts() ? coefficient : score, "sparq::TailScores",
              context.tile(slot, last),
              {{"tail", open[slot].flatten()},
               {"components", q.components[slot][last]},
               {"selectedQuery", q.selectedQuery[slot][last]},
               {"inverseTemperature", q.inverseTemperature[slot][last]},
               {"scores", scores.weights[slot][last].flatten()}},
              {{"groupSize", g},
               {"rank", r},
               {"tailLength", waves.tailLength},
               {"tailBegin", waves.nWaves * waves.length},
               {"partPositions", waves.partPositions()}},
              cycles::tailScores(waves.tailLength, g, r));
    for (unsigned part = 0; part != waves.nWaveParts(); ++part) {
      const unsigned tile = context.tile(slot, part);
      const Tensor index = context.cache.index[context.task(slot)][part].flatten();
      const float limit = static_cast<float>(coefficientLimit(bits, r));
      if (byGroup) {
        addVertex(context.graph, coefficient, "sparq::GroupCoefficients", tile,
                  {{"filled", context.filled(slot, part)},
                   {"layer", context.cache.layer[slot][part]},
                   {"index", index},
                   {"components", q.components[slot][part]},
                   {"selectedQuery", q.selectedQuery[slot][part]},
                   {"coefficients", coefficients[slot][part].flatten()},
                   {"units", units[slot][part].flatten()},
                   {"offsets", offsets[slot][part].flatten()},
                   {"biases", biases[slot][part].flatten()},
                   {"columns", columns[slot][part]}},
                  {{"groupSize", g},
                   {"rank", r},
                   {"headDim", d},
                   {"columnWords", columnWords},
                   {"firstBlock", part * nBlocks},
                   {"nBlocks", nBlocks},
                   {"limit", limit}},
                  cycles::groupCoefficients(nBlocks, g, r));
        addVertex(context.graph, score, "sparq::GroupScores", tile,
                  {{"filled", context.filled(slot, part)},
                   {"index", index},
                   {"columns", columns[slot][part]},
                   {"coefficients", coefficients[slot][part].flatten()},
                   {"units", units[slot][part].flatten()},
                   {"offsets", offsets[slot][part].flatten()},
                   {"biases", biases[slot][part].flatten()},
                   {"inverseTemperature", q.inverseTemperature[slot][part]},
                   {"codes", codes[slot][part].flatten()},
                   {"scores", scores.weights[slot][part].flatten()}},
                  {{"groupSize", g},
                   {"rank", r},
                   {"firstBlock", part * nBlocks},
                   {"nBlocks", nBlocks},
                   {"partPositions", waves.partPositions()}},
                  cycles::groupScores(nBlocks, g, r));
        continue;
      }
      addVertex(context.graph, coefficient, "sparq::ResidentCoefficients", tile,
                {{"filled", context.filled(slot, part)},
                 {"layer", context.cache.layer[slot][part]},
                 {"index", index},
                 {"components", q.components[slot][part]},
                 {"selectedQuery", q.selectedQuery[slot][part]},
                 {"coefficients", coefficients[slot][part].flatten()},
                 {"units", units[slot][part].flatten()},
                 {"offsets", offsets[slot][part].flatten()},
                 {"columns", columns[slot][part]}},
                {{"groupSize", g},
                 {"rank", r},
                 {"headDim", d},
                 {"indexBits", bits},
                 {"columnWords", columnWords},
                 {"firstBlock", part * nBlocks},
                 {"nBlocks", nBlocks},
                 {"limit", limit}},
                cycles::residentCoefficients(nBlocks, g, r));
      addVertex(context.graph, score, "sparq::ResidentScores", tile,
                {{"filled", context.filled(slot, part)},
                 {"index", index},
                 {"columns", columns[slot][part]},
                 {"coefficients", coefficients[slot][part].flatten()},
                 {"units", units[slot][part].flatten()},
                 {"offsets", offsets[slot][part].flatten()},
                 {"inverseTemperature", q.inverseTemperature[slot][part]},
                 {"scores", scores.weights[slot][part].flatten()}},
                {{"groupSize", g},
                 {"rank", r},
                 {"indexBits", bits},
                 {"firstBlock", part * nBlocks},
                 {"nBlocks", nBlocks},
                 {"partPositions", waves.partPositions()}},
                cycles::residentScores(nBlocks, g, r, bits));
    }
  }
}

} // namespace sparq
