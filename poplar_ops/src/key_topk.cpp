// SPDX-License-Identifier: Apache-2.0
#include "cycles.hpp"
#include "steps.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

constexpr unsigned nDigits = 32, nPasses = 6, nWorkers = 6, piece = 32; // as in the codelets

std::vector<Setting> with(std::vector<Setting> settings, std::initializer_list<Setting> more) {
  settings.insert(settings.end(), more);
  return settings;
}

} // namespace

Tensor selectPositions(const Context &context, const SparqSettings &settings, const Waves &waves,
                       const Scores &scores) {
  Graph &graph = context.graph;
  const unsigned g = context.groupSize(), n = waves.nLocal(), parts = context.parts();
  // A list no longer than the capacity: with top_k beyond it, everything is selected anyway.
  const unsigned topK = std::min(settings.topK, context.plan().layout.capacity);
  const unsigned nRecent = std::min(settings.nLocal, topK);
  const unsigned nPieces = n / piece;

  const Tensor keys = context.perPart(FLOAT, {n}, "keys");
  const Tensor states = context.perPart(UNSIGNED_INT, {nWorkers * 3}, "selection");
  const Tensor counts = context.perPart(UNSIGNED_INT, {nWorkers * nDigits}, "digit_counts");
  const Tensor partTotals = context.perPart(UNSIGNED_INT, {nDigits}, "digit_counts_of_part");
  // Digit i of a slot is summed on part i / digitsPerPart.
  const unsigned digitsPerPart = (nDigits + parts - 1) / parts;
  const Tensor totals =
      context.sliced(UNSIGNED_INT, nDigits, digitsPerPart, 1, "digit_totals").squeeze({2});
  const Tensor threshold = context.perPart(UNSIGNED_INT, {2}, "threshold");
  const Tensor ties = context.perPart(UNSIGNED_INT, {1, nPieces}, "ties");
  const Tensor masks = context.perPart(UNSIGNED_INT, {1, nPieces}, "mask");
  const Tensor selected = context.perPart(UNSIGNED_INT, {1, nPieces}, "selected_counts");
  const Tensor rows = context.sliced(UNSIGNED_INT, topK, topK, 1, "selected_rows").squeeze({2});

  const ComputeSet group = context.execute("group_keys");
  // The first pass is handed totals that it does not look at.
  context.program.add(WriteUndef(totals, {context.dc, "start_topk"}));
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
    const Tensor allTies = ascending(ties[slot], waves, piece).flatten();
    const double nAll = static_cast<double>(allTies.numElements());
    const Tensor ofParts = holding(partTotals[slot], waves);
    const unsigned nHolding = static_cast<unsigned>(ofParts.dim(0));
    for (unsigned part = 0; part != parts; ++part) {
      const unsigned tile = context.tile(slot, part);
      const double nOwn = waves.nOwn(part), ownPieces = cycles::share(nOwn / piece);
      const std::vector<Setting> where = positionSettings(waves, part);
      const unsigned inWaves = waves.nWaves * waves.length;
      const unsigned first = waves.room(part) != 0 ? 0 : inWaves;
      const unsigned end = waves.tailLength != 0 && part >= waves.tailFirst ? n : inWaves;
      addVertex(graph, group, "sparq::GroupKeys", tile,
                {{"weights", scores.weights[slot][part].flatten()},
                 {"sums", scores.sums[slot][part]},
                 {"keys", keys[slot][part]},
                 {"states", states[slot][part]}},
                {{"groupSize", g}, {"nLocal", n}, {"first", first}, {"end", end}},
                cycles::shared((end - first) / 4.0, g * 2 * (cycles::dividePair + 1) + 4));
      addVertex(graph, histogram, "sparq::KeyHistogram", tile,
                {{"filled", context.filled(slot, part)},
                 {"keys", keys[slot][part]},
                 {"totals", totals[slot]},
                 {"states", states[slot][part]},
                 {"counts", counts[slot][part]}},
                with(where, {{"topK", topK}, {"nRecent", nRecent}}),
                cycles::multi(nDigits * (cycles::scalarStep + 0.5) + cycles::share(nOwn) * 6));
      addVertex(graph, merge, "sparq::SumCounts", tile,
                {{"counts", counts[slot][part]}, {"totals", partTotals[slot][part]}},
                {{"nRows", nWorkers}, {"nDigits", nDigits}},
                cycles::shared(nDigits / 2, nWorkers * 3 + 2));
      const unsigned firstDigit = part * digitsPerPart;
      if (firstDigit < nDigits) {
        const unsigned own = std::min(digitsPerPart, nDigits - firstDigit);
        addVertex(graph, sum, "sparq::SumCounts", tile,
                  {{"counts", ofParts.slice(firstDigit, firstDigit + own, 1).flatten()},
                   {"totals", totals[slot].slice(firstDigit, firstDigit + own)}},
                  {{"nRows", nHolding}, {"nDigits", own}}, cycles::shared(own, nHolding * 2));
      }
      addVertex(graph, count, "sparq::CountTies", tile,
                {{"filled", context.filled(slot, part)},
                 {"keys", keys[slot][part]},
                 {"totals", totals[slot]},
                 {"states", states[slot][part]},
                 {"threshold", threshold[slot][part]},
                 {"ties", ties[slot][part].flatten()}},
                with(where, {{"nRecent", nRecent}}),
                cycles::multi(nDigits * cycles::scalarStep + ownPieces * piece * 2));
      addVertex(
          graph, select, "sparq::SelectMask", tile,
          {{"filled", context.filled(slot, part)},
           {"keys", keys[slot][part]},
           {"threshold", threshold[slot][part]},
           {"allTies", allTies},
           {"mask", masks[slot][part].flatten()},
           {"counts", selected[slot][part].flatten()}},
          with(where, {{"topK", topK}, {"nRecent", nRecent}, {"nWaveParts", waves.nWaveParts()}}),
          cycles::multi(nAll * 2 + ownPieces * piece * 6));
    }
    const Tensor allMasks = ascending(masks[slot], waves, piece).flatten();
    // The last worker counts all pieces before its own; positions are taken to be spread evenly.
    addVertex(graph, expand, "sparq::ExpandMask", context.tile(slot, 0),
              {{"filled", context.filled(slot, 0)},
               {"masks", allMasks},
               {"counts", ascending(selected[slot], waves, piece).flatten()},
               {"rows", rows[slot]}},
              {{"topK", topK},
               {"rowBase", static_cast<unsigned>(context.task(slot) * context.cache.rowsPerTask())},
               {"nWaveParts", waves.nWaveParts()},
               {"nPieces", static_cast<unsigned>(allMasks.numElements())},
               {"stride", waves.stride},
               {"length", waves.length},
               {"nWaves", waves.nWaves},
               {"tailLength", waves.tailLength},
               {"tailFirst", waves.tailFirst},
               {"chunk", waves.chunk}},
              cycles::multi(nAll * 2 + cycles::share(nAll) * 4 + cycles::share(topK) * 8));
  }
  return rows;
}

} // namespace sparq
