// SPDX-License-Identifier: Apache-2.0
#include "arith/masks.hpp"
#include "arith/selection.hpp"
#include "codelets/selection.cycles.hpp"
#include "planning.hpp"
#include "sparq/step_names.hpp"
#include "stores/rows.hpp"

namespace sparq {

namespace {

// The counts of a digit come from every part that holds positions. They are added up twice: first
// by all workers of a tile, for a group of parts and one or more items (two digits); then over the
// groups. The next pass then reads one sum, and no worker adds up long rows. Takes the number of
// groups that needs the fewest cycles.
struct GroupSums {
  unsigned nGroups = 1, nItems = nDigits / 2; // groups of parts; items of one tile
  GroupSums(unsigned nHolding, unsigned nParts) {
    std::uint64_t least = ~std::uint64_t(0);
    for (unsigned groups = 1; groups <= std::min(8u, nHolding); ++groups)
      for (unsigned items = 1; items <= nDigits / 2; items *= 2) {
        const unsigned rows = ceilDiv(nHolding, groups);
        if ((groups * (nDigits / 2 / items) > nParts && items != nDigits / 2) ||
            (groups - 1) * rows >= nHolding)
          continue;
        // A word arrives each cycle, and a piece takes three more. Data of the same tile is copied.
        const std::uint64_t time = std::uint64_t(12) * items * rows + 3 * rows +
                                   cycles::sumRows(items, rows) + (groups == 1 ? 256 * items : 0) +
                                   15 * groups + cycles::sumCounts(1, groups);
        if (time < least) {
          least = time;
          nGroups = groups;
          nItems = items;
        }
      }
  }
  unsigned perGroup() const { return nDigits / 2 / nItems; } // tiles
};

// The window of the first pass (codelets/key_topk.cpp). Its first digit takes all keys below, its
// last one all keys above the largest value that the wanted-th key can have.
struct Window {
  unsigned begin, shift;
  // Of keys that add up to the group size.
  Window(unsigned groupSize, unsigned wanted, unsigned capacity) {
    // Usually the wanted-th key is no further below the mean than that is below the bound.
    shift = capacity > 128 * wanted ? 22 : 21;
    const float bound = static_cast<float>(groupSize) * keyScale / static_cast<float>(wanted);
    begin = ((bitcast<unsigned>(bound) >> shift) + 2 - (nDigits - 1)) << shift;
  }
};

// The selection of one round: its working tensors, its compute sets, and the vertices of each
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
        topK(std::min(wanted, contextIn.layout().capacity)), nLocal(std::min(wantedLocal, topK)),
        window(contextIn.groupSize(), std::max(topK - nLocal, 1u), contextIn.layout().capacity),
        density(static_cast<double>(topK) / contextIn.layout().capacity) {
    std::vector<unsigned> holdingParts;
    for (unsigned part = 0; part != parts; ++part)
      if (waves.nOwn(part) != 0)
        holdingParts.push_back(part);
    placeSums(holdingParts);
    createTensors();
    steps = createSteps();
  }

  Selected add() const {
    for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
      const Tensor ofParts = holding(counts[slot], waves); // {parts, digits, workers}
      for (const Piece &piece : pieces)
        addGroup(slot, piece, ofParts);
      const Tensor ofBlocks = ordered(doubtful[slot]);
      for (unsigned part = 0; part != parts; ++part) {
        if (!itemsOfPart[part].empty())
          addSums(slot, part);
        if (waves.nOwn(part) != 0)
          addKeys(slot, part, ofBlocks);
      }
      addExpand(slot);
      if (by.scores)
        context.addVertex(steps.rank, "sparq::LargestDoubtful", slot, largestPart,
                          cycles::largestDoubtful(nBlocks), "doubtful"_f = ofBlocks,
                          "largest"_f = largest[slot], "nBlocks"_f = nBlocks);
    }
    if (by.scores) {
      const Tensor of = largestToLookAt();
      const auto nLargest = static_cast<unsigned>(of.numElements());
      // Beside other work; where it says so, that is done again.
      addVertex(graph, steps.expand, "sparq::AnyClash", controlTile(), cycles::anyClash(nLargest),
                "largest"_f = of, "any"_f = clash, "n"_f = nLargest);
    }
    return {concat(keyRows.expand({1}), valueRows.expand({1}), 1), selectedSums};
  }

private:
  // Sums of counts of groups, then sums of these on parts that have none, where there are such.
  void placeSums(const std::vector<unsigned> &holdingParts) {
    const auto nHolding = static_cast<unsigned>(holdingParts.size());
    const GroupSums sums(nHolding, parts);
    nGroups = sums.nGroups;
    const unsigned nRows = ceilDiv(nHolding, sums.nGroups);
    std::vector<bool> used(parts, false);
    for (unsigned group = 0, next = parts - 1; group != sums.nGroups; ++group) {
      const unsigned first = std::min(group * nRows, nHolding),
                     end = std::min(first + nRows, nHolding);
      for (unsigned i = 0; i != sums.perGroup(); ++i) {
        const auto isOwn = [&](unsigned part) {
          return first != end && part >= holdingParts[first] && part <= holdingParts[end - 1];
        };
        // From the last part on, for those behind the others hold nothing.
        unsigned tries = 0;
        for (; tries != 2 * parts && (used[next] || (tries < parts && isOwn(next))); ++tries)
          next = next == 0 ? parts - 1 : next - 1;
        used[next] = true;
        pieces.push_back({group, first, end, i * sums.nItems, sums.nItems, next});
      }
    }
    std::vector<unsigned> left;
    for (unsigned part = parts; part-- != 0;)
      if (!used[part])
        left.push_back(part);
    constexpr unsigned fewest = 6; // else these have more than others
    if (left.size() < fewest) {
      left.clear();
      for (unsigned part = parts; part-- != 0;)
        left.push_back(part);
    }
    const unsigned each = ceilDiv(nDigits / 2, left.size());
    itemsOfPart.resize(parts);
    for (unsigned item = 0; item != nDigits / 2; ++item)
      itemsOfPart[left[item / each]].push_back(item);
  }
  void createTensors() {
    groupSums = context.once("digit_sums", [&] {
      const Tensor t =
          graph.addVariable(FLOAT, {context.placement().slots, nGroups, nDigits, cycles::nWorkers},
                            {context.dc, "digit_sums"});
      for (unsigned slot = 0; slot != context.placement().slots; ++slot)
        for (const Piece &piece : pieces)
          graph.setTileMapping(piece.of(t[slot]), context.tile(slot, piece.part));
      return t;
    });
    keys = by.scores ? context.perPart(FLOAT, {n}, "keys") : by.keys.reinterpret(FLOAT);
    states = context.perPart(UNSIGNED_INT, {cycles::nWorkers * 4}, "selection");
    totals = context.once("digit_totals", [&] {
      const Tensor t = graph.addVariable(FLOAT, {context.placement().slots, nDigits},
                                         {context.dc, "digit_totals"});
      for (unsigned slot = 0; slot != context.placement().slots; ++slot)
        for (unsigned part = 0; part != parts; ++part)
          if (!itemsOfPart[part].empty())
            graph.setTileMapping(ofItems(t[slot], part), context.tile(slot, part));
      return t;
    });
    marks = context.perPart(UNSIGNED_INT, {n / pieceSize}, "marks");
    doubts = context.perPart(UNSIGNED_INT, {n / pieceSize}, "doubts");
    doubtful = context.perPart(FLOAT, {n / pieceSize}, "doubtful_keys");
    before = context.perPart(FLOAT, {n / pieceSize * cycles::nWorkers}, "doubtful_ranks");
    selectedCounts = context.perPart(FLOAT, {n / block}, "selected_counts");
    nBlocks = static_cast<unsigned>(ordered(doubtful[0]).numElements()) / 2;
    if (by.scores) {
      largest = context.onPart(largestPart, FLOAT, {cycles::nWorkers}, "largest_doubtful");
      clash = context.onTile(controlTile(), BOOL, {}, "any_clash");
      selectedSums = context.perPart(FLOAT, {context.groupSize(), n / block}, "selected_sums");
    }
    keyRows = perEntry("selected_keys");
    valueRows = perEntry("selected_values");
  }
  unsigned controlTile() const { return graph.getTarget().getNumTiles() - 1; }
  // {slots, topK} UNSIGNED_INT, entries of the list spread over the parts from firstEntryPart on.
  Tensor perEntry(const char *name) const {
    return context.sliced(UNSIGNED_INT, topK, rowsPerPart, 1, name, firstEntryPart).squeeze({2});
  }
  // Of words of the parts {parts, partPositions / 32}: all, ascending by position.
  Tensor ordered(const Tensor &perPart) const {
    return ascending(perPart.expand({1}), waves, pieceSize).flatten();
  }

  struct Steps {
    ComputeSet group, rows, sum, histogram, mark, rank, take, expand;
  };
  // The compute sets, and the order in which they run: keys that come from scores are counted in
  // the window first, and by all bits only where that is not enough.
  Steps createSteps() const {
    const auto create = [&](const char *name) {
      return context.cache.lockstep->addComputeSet(graph, {context.dc, name});
    };
    const Steps cs{by.scores ? create(steps::groupKeys) : ComputeSet(),
                   create(steps::sumRows),
                   create(steps::sumCounts),
                   create(steps::keyHistogram),
                   create(steps::markKeys),
                   create(steps::rankKeys),
                   create(steps::takeKeys),
                   create(steps::expandMarks)};
    context.begin(counts);
    if (by.scores) {
      execute(context.program, {{cs.group, steps::groupKeys}});
      executeSums(context.program, cs);
      execute(context.program, {{cs.histogram, steps::keyHistogram}});
      executeSums(context.program, cs);
      executeMarks(context.program, cs);
      Sequence again({}, {context.dc, steps::selectAgain});
      addAllBits(again, cs);
      const Tensor of = context.greatest(clash);
      context.program.add(If(of, again, Sequence(), {context.dc, steps::selectAgain}));
    } else {
      addAllBits(context.program, cs);
    }
    return cs;
  }
  void execute(Sequence &program,
               const std::vector<std::pair<ComputeSet, const char *>> &steps) const {
    for (const auto &[cs, name] : steps)
      program.add(Execute(cs, {context.dc, name}));
  }
  void executeSums(Sequence &program, const Steps &cs) const {
    execute(program, {{cs.rows, steps::sumRows}, {cs.sum, steps::sumCounts}});
  }
  void executeMarks(Sequence &program, const Steps &cs) const {
    execute(program, {{cs.mark, steps::markKeys},
                      {cs.rank, steps::rankKeys},
                      {cs.take, steps::takeKeys},
                      {cs.expand, steps::expandMarks}});
  }
  // The selection by all bits, from the start.
  void addAllBits(Sequence &program, const Steps &cs) const {
    const Tensor none = context.once(
        "no_selection", [&] { return addZeroPerPart(graph, context.placement(), context.dc); });
    context.within(program).copy(
        none.expand({2}).broadcast(static_cast<unsigned>(states.dim(2)), 2), states,
        "start_selection");
    Sequence pass({}, {context.dc, "pass"});
    execute(pass, {{cs.histogram, steps::keyHistogram}});
    executeSums(pass, cs);
    program.add(Repeat(nPasses + by.morePasses, pass, {context.dc, "radix_passes"}));
    executeMarks(program, cs);
  }
  // Flags of each slot: whether it has to begin again. A plan knows no keys and assumes no clash.
  Tensor largestToLookAt() const {
    if (context.plan().assumedHitRate < 0)
      return context.active(largest).flatten();
    const Tensor zero = graph.addConstant(FLOAT, {context.nSlots(), cycles::nWorkers}, 0.0f,
                                          {context.dc, "no_clash"});
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      graph.setTileMapping(zero[slot], context.tile(slot, largestPart));
    return zero.flatten();
  }

  // Of the totals of a slot those that the part adds up.
  Tensor ofItems(const Tensor &totalsOfSlot, unsigned part) const {
    const std::vector<unsigned> &items = itemsOfPart[part];
    return totalsOfSlot.slice(items.front() * 2, (items.back() + 1) * 2);
  }
  // Sums of a group of parts: items from `first` on, the parts [begin, end) of those that hold
  // positions.
  struct Piece {
    unsigned group, begin, end, first, nItems, part;
    // Of {groups, digits, workers}.
    Tensor of(const Tensor &sums) const {
      return sums[group].slice(first * 2, (first + nItems) * 2).flatten();
    }
  };
  void addGroup(unsigned slot, const Piece &piece, const Tensor &ofParts) const {
    const Tensor rows = ofParts.slice(piece.begin, piece.end);
    std::vector<Tensor> toAdd;
    for (unsigned item = piece.first; item != piece.first + piece.nItems; ++item)
      toAdd.push_back(rows.slice(item * 2, item * 2 + 2, 1).flatten());
    const unsigned nRows = piece.end - piece.begin;
    context.addVertex(steps.rows, "sparq::SumRows", slot, piece.part,
                      cycles::sumRows(piece.nItems, nRows), "counts"_f = concat(toAdd),
                      "sums"_f = piece.of(groupSums[slot]), "nItems"_f = piece.nItems,
                      "nRows"_f = nRows, "each"_f = ceilDiv(nRows, cycles::nWorkers));
  }
  // Counts of the part's items, over all groups.
  void addSums(unsigned slot, unsigned part) const {
    const std::vector<unsigned> &items = itemsOfPart[part];
    const auto nItems = static_cast<unsigned>(items.size());
    std::vector<Tensor> toAdd;
    for (const unsigned item : items)
      toAdd.push_back(groupSums[slot].slice(item * 2, item * 2 + 2, 1).flatten());
    context.addVertex(steps.sum, "sparq::SumCounts", slot, part, cycles::sumCounts(nItems, nGroups),
                      "counts"_f = concat(toAdd), "totals"_f = ofItems(totals[slot], part),
                      "nItems"_f = nItems, "nRows"_f = nGroups);
  }

  // What the part does with its own positions: make keys, count them by digit, mark them.
  void addKeys(unsigned slot, unsigned part, const Tensor &ofBlocks) const {
    const unsigned g = context.groupSize();
    const double nOwn = waves.nOwn(part);
    const Fields where = positionSettings(waves, part),
                 counted{"topK"_f = topK, "nLocal"_f = nLocal, "wide"_f = by.morePasses != 0};
    if (by.scores)
      context.addVertex(
          steps.group, "sparq::GroupKeys", slot, part, cycles::groupKeys(nOwn, g),
          "filled"_f = context.filled(slot, part), "weights"_f = by.scores->weights[slot][part],
          "sums"_f = by.scores->sums[slot][part], "keys"_f = keys[slot][part],
          "states"_f = states[slot][part], "counts"_f = counts[slot][part], where,
          "groupSize"_f = g, "partPositions"_f = n, "topK"_f = topK, "nLocal"_f = nLocal,
          "windowBegin"_f = window.begin, "windowShift"_f = window.shift);
    context.addVertex(steps.histogram, "sparq::KeyHistogram", slot, part,
                      cycles::keyHistogram(nOwn, density), "filled"_f = context.filled(slot, part),
                      "keys"_f = keys[slot][part], "totals"_f = totals[slot],
                      "states"_f = states[slot][part], "counts"_f = counts[slot][part], where,
                      counted, "firstShift"_f = (nPasses - 1 + by.morePasses) * digitBits);
    context.addVertex(steps.mark, "sparq::MarkKeys", slot, part, cycles::markKeys(nOwn, density),
                      "filled"_f = context.filled(slot, part), "keys"_f = keys[slot][part],
                      "totals"_f = totals[slot], "states"_f = states[slot][part],
                      "marks"_f = marks[slot][part], "doubts"_f = doubts[slot][part],
                      "doubtful"_f = doubtful[slot][part], where, counted);
    context.addVertex(steps.rank, "sparq::RankKeys", slot, part, cycles::rankKeys(n, nBlocks),
                      "states"_f = states[slot][part], "doubtful"_f = ofBlocks,
                      "doubts"_f = doubts[slot][part], "before"_f = before[slot][part],
                      "partPositions"_f = n, "nBlocks"_f = nBlocks, "part"_f = part,
                      "length"_f = waves.length, "nWaves"_f = waves.nWaves,
                      "tailLength"_f = waves.tailLength, "tailFirst"_f = waves.tailFirst,
                      "nWaveParts"_f = waves.nWaveParts());
    context.addVertex(steps.take, "sparq::TakeKeys", slot, part, cycles::takeKeys(n),
                      "states"_f = states[slot][part], "doubtful"_f = doubtful[slot][part],
                      "doubts"_f = doubts[slot][part], "before"_f = before[slot][part],
                      "marks"_f = marks[slot][part], "counts"_f = selectedCounts[slot][part],
                      "partPositions"_f = n);
    if (by.scores)
      context.addVertex(steps.expand, "sparq::SelectedSums", slot, part,
                        cycles::selectedSums(n / block, g, static_cast<double>(topK) / nBlocks),
                        "marks"_f = marks[slot][part], "weights"_f = by.scores->weights[slot][part],
                        "sums"_f = selectedSums[slot][part], "groupSize"_f = g,
                        "partPositions"_f = n);
  }

  // From the marks of all parts, each part makes its own entries of the list.
  void addExpand(unsigned slot) const {
    const Tensor allMarks = ordered(marks[slot]),
                 allCounts = ascending(selectedCounts[slot].expand({1}), waves, block).flatten();
    for (unsigned i = 0; i * rowsPerPart < topK; ++i) {
      const unsigned first = i * rowsPerPart, end = std::min(first + rowsPerPart, topK),
                     part = firstEntryPart + i;
      const ListEntries listed = entries.entries(context.cache, context.task(slot));
      context.addVertex(
          steps.expand, "sparq::ExpandMarks", slot, part,
          cycles::expandMarks(nBlocks, end - first, topK), "filled"_f = context.filled(slot, part),
          "layer"_f = context.cache.layer[slot][part], "marks"_f = allMarks, "counts"_f = allCounts,
          "keyRows"_f = keyRows[slot].slice(first, end),
          "valueRows"_f = valueRows[slot].slice(first, end), "firstEntry"_f = first,
          "nEntries"_f = end - first, "rowBase"_f = listed.rowBase, "valueRow"_f = listed.valueRow,
          "layerRows"_f = listed.layerRows, "nWaveParts"_f = waves.nWaveParts(),
          "nBlocks"_f = nBlocks, "stride"_f = waves.stride, "length"_f = waves.length,
          "nWaves"_f = waves.nWaves, "chunk"_f = waves.chunk);
    }
  }

  const Context &context;
  Graph &graph;
  const Waves &waves;
  const By by;
  const ListRows &entries;
  const unsigned topK, nLocal;
  const Window window;
  const double density; // of selected positions
  const unsigned n = waves.partPositions(), parts = context.parts();
  const unsigned rowsPerPart = entriesPerPart(context.plan(), topK);
  // In three tiers some parts hold no positions, and so have less to do. Rows that are streamed go
  // where their entries are.
  const unsigned nIdle = context.plan().hot.nPlaces != 0
                             ? parts - std::min(parts, waves.nWaveParts() + 1)
                             : 0,
                 firstEntryPart = nIdle > ceilDiv(topK, rowsPerPart) ? waves.nWaveParts() : 0,
                 largestPart = nIdle != 0 ? parts - 2 : parts - 1;
  unsigned nGroups = 0; // of parts, whose counts are added up first
  // Two digits each: those that a part adds up over the groups.
  std::vector<std::vector<unsigned>> itemsOfPart;
  std::vector<Piece> pieces; // of sums of groups
  Tensor groupSums;          // {slots, groups, digits, workers}
  const Tensor counts = context.perPart(FLOAT, {nDigits, cycles::nWorkers}, "digit_counts");
  unsigned nBlocks = 0; // of a slot
  Tensor keys, states, totals, marks, doubts, doubtful, before, selectedCounts, selectedSums;
  Tensor largest, clash;     // doubtful key of each slot; whether any of them is a clash
  Tensor keyRows, valueRows; // {slots, topK}
  Steps steps;
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
