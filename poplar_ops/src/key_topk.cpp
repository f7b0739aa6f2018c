// SPDX-License-Identifier: Apache-2.0
#include "arith/selection.hpp"
#include "codelets/cycles.hpp"
#include "codelets/key_topk.cycles.hpp"
#include "codelets/selected_share.cycles.hpp"
#include "planning.hpp"
#include "stores/rows.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

std::vector<Setting> with(std::vector<Setting> settings, std::initializer_list<Setting> more) {
  settings.insert(settings.end(), more);
  return settings;
}

// The counts of a digit come from every part that holds positions. In how many sums are they added
// up, if each costs the next pass more: in as many as take the fewest slots on the way to one total.
// Divides these parts, so that all sums have as many numbers.
unsigned nPartialSums(unsigned nHolding, unsigned nParts) {
  const auto slots = [&](unsigned n) {
    const unsigned items = (n * nDigits / 2 + nParts - 1) / nParts; // of one part
    return cycles::share(items) * cycles::digitPairSum(nHolding / n) + cycles::settle(n);
  };
  unsigned best = 1;
  for (unsigned n = 2; n <= 6; ++n)
    if (nHolding % n == 0 && slots(n) < slots(best))
      best = n;
  return best;
}

// The radix selection of one round: its working tensors, its compute sets, and the vertices of each
// part.
class Selection {
public:
  // What positions are selected by: their scores, or keys as they are.
  struct By {
    const Scores *scores;
    Tensor keys;         // {slots, parts, partPositions} UNSIGNED_INT where there are no scores
    unsigned morePasses; // 1: of 31 bits
  };
  Selection(const Context &contextIn, unsigned wanted, unsigned wantedLocal, const Waves &wavesIn,
            const By &byIn, const ListRows &entriesIn)
      : context(contextIn), graph(contextIn.graph), waves(wavesIn), by(byIn), entries(entriesIn),
        // A list no longer than the capacity: with top_k beyond it, everything is selected anyway.
        topK(std::min(wanted, contextIn.layout().capacity)), nLocal(std::min(wantedLocal, topK)) {
    unsigned nHolding = 0;
    for (unsigned part = parts; part-- != 0;)
      if (waves.nOwn(part) != 0) {
        ++nHolding;
        firstHolding = part;
      }
    nPartials = nPartialSums(nHolding, parts);
    partsPerSum = nHolding / nPartials;
    nItems = nPartials * nDigits / 2;
    itemsPerPart = (nItems + parts - 1) / parts;
    createTensors();
  }

  Selected add() const {
    for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
      const Tensor ofParts = holding(counts[slot], waves); // {parts, digits, workers}
      for (unsigned part = 0; part != parts; ++part) {
        if (part * itemsPerPart < nItems)
          addSums(slot, part, ofParts);
        if (waves.nOwn(part) != 0)
          addKeys(slot, part);
      }
      addExpand(slot);
    }
    return {concat(keyRows.expand({1}), valueRows.expand({1}), 1), selectedSums};
  }

private:
  void createTensors() {
    const unsigned nPieces = n / pieceSize;
    keys = by.scores ? context.perPart(FLOAT, {n}, "keys") : by.keys.reinterpret(FLOAT);
    states = context.perPart(UNSIGNED_INT, {cycles::nWorkers * 3}, "selection");
    totals = context.sliced(FLOAT, nItems, itemsPerPart, 2, "digit_totals")
                 .reshape({context.placement().slots, nPartials * nDigits});
    marks = context.perPart(UNSIGNED_INT, {nPieces, 2}, "marks");
    marked = context.perPart(FLOAT, {nPieces, 2}, "marked_counts");
    tiesToTake = context.perPart(FLOAT, {1}, "ties_to_take");
    if (by.scores)
      selectedSums = context.perPart(FLOAT, {context.groupSize(), n / block}, "selected_sums");
    keyRows = context.sliced(UNSIGNED_INT, topK, rowsPerPart, 1, "selected_keys").squeeze({2});
    valueRows = context.sliced(UNSIGNED_INT, topK, rowsPerPart, 1, "selected_values").squeeze({2});
  }

  // The compute sets, in the order in which they run.
  struct Steps {
    ComputeSet group;
    ComputeSet sums[2]; // of the first pass, of the others
    ComputeSet histogram, mark, expand;
  };
  Steps createSteps() const {
    context.begin(counts);
    const ComputeSet group = context.execute("group_keys"),
                     firstSum = context.execute("sum_counts");
    Sequence pass({}, {context.dc, "pass"});
    const Context inner = context.within(pass);
    const ComputeSet histogram = inner.execute("key_histogram"), sum = inner.execute("sum_counts");
    context.program.add(Repeat(nPasses + by.morePasses - 1, pass, {context.dc, "radix_passes"}));
    const ComputeSet mark = context.execute("mark_keys"), expand = context.execute("expand_marks");
    return {group, {firstSum, sum}, histogram, mark, expand};
  }

  // Counts of the part's items, over the workers of all parts.
  void addSums(unsigned slot, unsigned part, const Tensor &ofParts) const {
    const unsigned first = part * itemsPerPart, end = std::min(first + itemsPerPart, nItems);
    std::vector<Tensor> ofItems;
    for (unsigned item = first; item != end; ++item) {
      const std::size_t firstPart = item / (nDigits / 2) * partsPerSum,
                        digit = item % (nDigits / 2) * 2;
      ofItems.push_back(
          ofParts.slice(firstPart, firstPart + partsPerSum).slice(digit, digit + 2, 1).flatten());
    }
    for (const ComputeSet &cs : steps.sums)
      addVertex(graph, cs, "sparq::SumCounts", context.tile(slot, part),
                {{"counts", concat(ofItems)}, {"totals", totals[slot].slice(first * 2, end * 2)}},
                {{"nItems", end - first}, {"nRows", partsPerSum}},
                cycles::sumCounts(end - first, partsPerSum));
  }

  // What the part does with its own positions: make keys, count them by digit, mark them.
  void addKeys(unsigned slot, unsigned part) const {
    const unsigned tile = context.tile(slot, part), g = context.groupSize();
    const double nOwn = waves.nOwn(part);
    const std::vector<Setting> where = positionSettings(waves, part);
    if (by.scores)
      addVertex(
          graph, steps.group, "sparq::GroupKeys", tile,
          {{"filled", context.filled(slot, part)},
           {"weights", by.scores->weights[slot][part].flatten()},
           {"sums", by.scores->sums[slot][part]},
           {"keys", keys[slot][part]},
           {"states", states[slot][part]},
           {"counts", counts[slot][part].flatten()}},
          with(where, {{"groupSize", g}, {"partPositions", n}, {"topK", topK}, {"nLocal", nLocal}}),
          cycles::groupKeys(nOwn, g));
    else
      addVertex(graph, steps.group, "sparq::GivenKeys", tile,
                {{"filled", context.filled(slot, part)},
                 {"keys", keys[slot][part]},
                 {"states", states[slot][part]},
                 {"counts", counts[slot][part].flatten()}},
                with(where, {{"topK", topK}, {"nLocal", nLocal}, {"morePasses", by.morePasses}}),
                cycles::givenKeys(nOwn));
    addVertex(graph, steps.histogram, "sparq::KeyHistogram", tile,
              {{"filled", context.filled(slot, part)},
               {"keys", keys[slot][part]},
               {"totals", totals[slot]},
               {"states", states[slot][part]},
               {"counts", counts[slot][part].flatten()}},
              with(where, {{"nPartials", nPartials}, {"nLocal", nLocal}}),
              cycles::keyHistogram(nOwn, nPartials));
    addVertex(graph, steps.mark, "sparq::MarkKeys", tile,
              {{"filled", context.filled(slot, part)},
               {"keys", keys[slot][part]},
               {"totals", totals[slot]},
               {"states", states[slot][part]},
               {"marks", marks[slot][part].flatten()},
               {"counts", marked[slot][part].flatten()},
               {"tiesToTake", tiesToTake[slot][part]}},
              with(where, {{"nPartials", nPartials}, {"topK", topK}, {"nLocal", nLocal}}),
              cycles::markKeys(nOwn, nPartials));
  }

  // From the marks of all parts, each part makes its own entries of the list.
  void addExpand(unsigned slot) const {
    // {pieces, 2} ascending by position.
    const auto ordered = [&](const Tensor &t) {
      return ascending(t[slot].dimShuffle({0, 2, 1}), waves, pieceSize).transpose();
    };
    const Tensor allMarks = ordered(marks), allCounts = ordered(marked);
    const unsigned nAll = static_cast<unsigned>(allMarks.dim(0));
    for (unsigned part = 0; part != parts; ++part)
      if (by.scores && waves.nOwn(part) != 0)
        addSelectedSums(slot, part, allCounts);
    for (unsigned part = 0; part * rowsPerPart < topK; ++part) {
      const unsigned first = part * rowsPerPart, end = std::min(first + rowsPerPart, topK);
      const ListEntries listed = entries.entries(context.cache, context.task(slot));
      addVertex(graph, steps.expand, "sparq::ExpandMarks", context.tile(slot, part),
                {{"filled", context.filled(slot, part)},
                 {"layer", context.cache.layer[slot][part]},
                 {"marks", allMarks.flatten()},
                 {"counts", allCounts.flatten()},
                 {"tiesToTake", tiesToTake[slot][firstHolding]},
                 {"keyRows", keyRows[slot].slice(first, end)},
                 {"valueRows", valueRows[slot].slice(first, end)}},
                {{"firstEntry", first},
                 {"nEntries", end - first},
                 {"rowBase", listed.rowBase},
                 {"valueRow", listed.valueRow},
                 {"layerRows", listed.layerRows},
                 {"nWaveParts", waves.nWaveParts()},
                 {"nPieces", nAll},
                 {"stride", waves.stride},
                 {"length", waves.length},
                 {"nWaves", waves.nWaves},
                 {"chunk", waves.chunk}},
                cycles::expandMarks(nAll, end - first, topK));
    }
  }

  // The weights of the part's selected positions, added up by block.
  void addSelectedSums(unsigned slot, unsigned part, const Tensor &allCounts) const {
    const unsigned g = context.groupSize();
    addVertex(
        graph, steps.expand, "sparq::SelectedSums", context.tile(slot, part),
        {{"marks", marks[slot][part].flatten()},
         {"counts", allCounts.flatten()},
         {"tiesToTake", tiesToTake[slot][part]},
         {"weights", by.scores->weights[slot][part].flatten()},
         {"sums", selectedSums[slot][part].flatten()}},
        {{"groupSize", g},
         {"partPositions", n},
         {"part", part},
         {"length", waves.length},
         {"nWaves", waves.nWaves},
         {"tailLength", waves.tailLength},
         {"tailFirst", waves.tailFirst},
         {"nWaveParts", waves.nWaveParts()}},
        cycles::selectedSums(n / block, g, 2.0 * topK / static_cast<double>(allCounts.dim(0))));
  }

  const Context &context;
  Graph &graph;
  const Waves &waves;
  const By by;
  const ListRows &entries;
  const unsigned topK, nLocal;
  const unsigned n = waves.partPositions(), parts = context.parts();
  const unsigned rowsPerPart = (topK + parts - 1) / parts; // entries of the list that a part makes
  unsigned firstHolding = parts;                           // first part that holds positions
  unsigned nPartials = 0, partsPerSum = 0; // partial sums of a count, and the parts of each
  // Item i, two digits of a partial sum, is added up on part i / itemsPerPart.
  unsigned nItems = 0, itemsPerPart = 0;
  const Tensor counts = context.perPart(FLOAT, {nDigits, cycles::nWorkers}, "digit_counts");
  Tensor keys, states, totals, marks, marked, tiesToTake, selectedSums;
  Tensor keyRows, valueRows; // {slots, topK}
  const Steps steps = createSteps();
};

} // namespace

Selected selectPositions(const Context &context, const SparqSettings &settings, const Waves &waves,
                         const Scores &scores, const ListRows &entries) {
  return Selection(context, settings.topK, settings.nLocal, waves, {&scores, {}, 0}, entries).add();
}

Selected selectByKeys(const Context &context, const WindowSettings &settings, const Waves &waves,
                      const Tensor &keys, bool wide, const ListRows &entries) {
  return Selection(context, settings.topK, settings.nLocal, waves, {nullptr, keys, wide ? 1u : 0u},
                   entries)
      .add();
}

} // namespace sparq
