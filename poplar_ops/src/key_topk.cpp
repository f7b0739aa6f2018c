// SPDX-License-Identifier: Apache-2.0
#include "cycles.hpp"
#include "steps.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

constexpr unsigned nDigits = 16, nPasses = 8, nWorkers = 6;

std::vector<Setting> positions(const Waves &waves, unsigned part) {
  return {{"part", part},           {"stride", waves.stride},         {"length", waves.length},
          {"nWaves", waves.nWaves}, {"tailLength", waves.tailLength}, {"chunk", waves.chunk}};
}

std::vector<Setting> with(std::vector<Setting> settings, std::initializer_list<Setting> more) {
  settings.insert(settings.end(), more);
  return settings;
}

} // namespace

Tensor selectPositions(const Context &context, const SparqSettings &settings, const Waves &waves,
                       const Scores &scores) {
  Graph &graph = context.graph;
  const unsigned g = context.groupSize(), n = waves.nLocal(), parts = context.parts(),
                 nSegments = waves.nSegments();
  // A list no longer than the capacity: with top_k beyond it, everything is selected anyway.
  const unsigned topK = std::min(settings.topK, context.plan().layout.capacity);
  const unsigned nRecent = std::min(settings.nLocal, topK);
  const double nOwn = n; // positions of a part

  const Tensor keys = context.perPart(FLOAT, {n}, "keys");
  const Tensor states = context.perPart(UNSIGNED_INT, {nWorkers * 3}, "selection");
  const Tensor counts = context.perPart(UNSIGNED_INT, {nWorkers * nDigits}, "digit_counts");
  const Tensor partTotals = context.perPart(UNSIGNED_INT, {nDigits}, "digit_counts_of_part");
  // Digit i of a slot is summed on part i / digitsPerPart.
  const unsigned digitsPerPart = (nDigits + parts - 1) / parts;
  const Tensor totals =
      context.sliced(UNSIGNED_INT, nDigits, digitsPerPart, 1, "digit_totals").squeeze({2});
  const Tensor threshold = context.perPart(UNSIGNED_INT, {2}, "threshold");
  const Tensor ties = context.perPart(UNSIGNED_INT, {nSegments}, "ties");
  const Tensor masks = context.perPart(UNSIGNED_INT, {n / 32}, "mask");
  const Tensor selected = context.perPart(UNSIGNED_INT, {nSegments}, "selected_counts");
  const Tensor rows = context.sliced(UNSIGNED_INT, topK, topK, 1, "selected_rows").squeeze({2});
  const Tensor zero = context.once("zero", [&] {
    const Tensor t = graph.addConstant(UNSIGNED_INT, {1}, 0u, {context.dc, "zero"});
    graph.setTileMapping(t, 0);
    return t;
  });
  const auto zeroed = [&](const Tensor &t) {
    const Tensor flat = context.active(t).flatten();
    context.program.add(Copy(zero.broadcast(static_cast<unsigned>(flat.numElements()), 0), flat,
                             false, {context.dc, "start_topk"}));
  };

  const ComputeSet group = context.execute("group_keys");
  zeroed(states);
  zeroed(totals);
  Sequence pass({}, {context.dc, "pass"});
  const Context inner = context.within(pass);
  const ComputeSet histogram = inner.execute("key_histogram");
  const ComputeSet merge = inner.execute("merge_counts");
  const ComputeSet sum = inner.execute("sum_counts");
  context.program.add(Repeat(nPasses, pass, {context.dc, "radix_passes"}));
  const ComputeSet count = context.execute("count_ties");
  const ComputeSet select = context.execute("select_mask");
  const ComputeSet expand = context.execute("expand_mask");

  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    const Tensor filled = context.filled(slot);
    for (unsigned part = 0; part != parts; ++part) {
      const unsigned tile = context.tile(slot, part);
      const std::vector<Setting> where = positions(waves, part);
      addVertex(graph, group, "sparq::GroupKeys", tile,
                {{"weights", scores.weights[slot][part].flatten()},
                 {"sums", scores.sums[slot][part]},
                 {"keys", keys[slot][part]}},
                {{"groupSize", g}, {"nLocal", n}},
                cycles::shared(nOwn / 8, g * (cycles::divideLanes + 8)));
      addVertex(graph, histogram, "sparq::KeyHistogram", tile,
                {{"filled", filled},
                 {"keys", keys[slot][part]},
                 {"totals", totals[slot]},
                 {"states", states[slot][part]},
                 {"counts", counts[slot][part]}},
                with(where, {{"topK", topK}, {"nRecent", nRecent}}),
                cycles::repeated(2 * nDigits, cycles::scalarStep) + cycles::shared(nOwn, 6));
      addVertex(graph, merge, "sparq::SumCounts", tile,
                {{"counts", counts[slot][part]}, {"totals", partTotals[slot][part]}},
                {{"nRows", nWorkers}, {"nDigits", nDigits}}, cycles::shared(nDigits, nWorkers * 2));
      const unsigned firstDigit = part * digitsPerPart;
      if (firstDigit < nDigits) {
        const unsigned own = std::min(digitsPerPart, nDigits - firstDigit);
        addVertex(graph, sum, "sparq::SumCounts", tile,
                  {{"counts", partTotals[slot].slice(firstDigit, firstDigit + own, 1).flatten()},
                   {"totals", totals[slot].slice(firstDigit, firstDigit + own)}},
                  {{"nRows", parts}, {"nDigits", own}}, cycles::shared(own, parts * 2));
      }
      addVertex(graph, count, "sparq::CountTies", tile,
                {{"filled", filled},
                 {"keys", keys[slot][part]},
                 {"totals", totals[slot]},
                 {"states", states[slot][part]},
                 {"threshold", threshold[slot][part]},
                 {"ties", ties[slot][part]}},
                with(where, {{"nRecent", nRecent}}),
                cycles::repeated(nDigits, cycles::scalarStep) +
                    cycles::shared(nSegments, nOwn / nSegments * 2));
      addVertex(graph, select, "sparq::SelectMask", tile,
                {{"filled", filled},
                 {"keys", keys[slot][part]},
                 {"threshold", threshold[slot][part]},
                 {"allTies", ties[slot].transpose().flatten()},
                 {"mask", masks[slot][part]},
                 {"counts", selected[slot][part]}},
                with(where, {{"topK", topK}, {"nRecent", nRecent}, {"nParts", parts}}),
                cycles::repeated(nSegments * parts, 2) +
                    cycles::shared(nSegments, nOwn / nSegments * 8));
    }
    const double nLists = double(nSegments) * parts, nWords = double(n) / 32 * parts;
    addVertex(graph, expand, "sparq::ExpandMask", context.tile(slot, 0),
              {{"filled", filled},
               {"masks", masks[slot].flatten()},
               {"counts", selected[slot].transpose().flatten()},
               {"rows", rows[slot]}},
              {{"topK", topK},
               {"rowBase", static_cast<unsigned>(context.task(slot) * context.cache.rowsPerTask())},
               {"nParts", parts},
               {"nLocal", n},
               {"stride", waves.stride},
               {"length", waves.length},
               {"nWaves", waves.nWaves},
               {"tailLength", waves.tailLength},
               {"chunk", waves.chunk}},
              cycles::repeated(nLists, 2) + cycles::shared(nWords, 4) + cycles::shared(topK, 8));
  }
  return rows;
}

} // namespace sparq
