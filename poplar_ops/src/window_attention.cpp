// SPDX-License-Identifier: Apache-2.0
//
// Window attention (arXiv:2403.17312, Algorithm 1; docs/exactness.md E11): the steps in order.
// Every KV head selects for itself, at the same time and the same positions: a list made once would
// have to be sent to all of them.
#include "codelets/attention.cycles.hpp"
#include "list_weights.hpp"
#include "planning.hpp"
#include "stores/history.hpp"
#include "stores/rows.hpp"

namespace sparq {

namespace {

// A variable {n, topK}; entries of the list of task taskOf(i) on the parts of its slot.
template <class TaskOf>
Tensor addLists(Graph &graph, const Placement &p, unsigned n, unsigned topK, unsigned rowsPerPart,
                const TaskOf &taskOf, const DebugContext &dc) {
  const Tensor t = graph.addVariable(UNSIGNED_INT, {n, topK}, dc);
  for (unsigned i = 0; i != n; ++i)
    for (unsigned first = 0, part = 0; first < topK; first += rowsPerPart, ++part)
      graph.setTileMapping(t[i].slice(first, std::min(first + rowsPerPart, topK)),
                           p.tile(taskOf(i) % p.slots, part));
  return t;
}

// What window attention selects by (docs/exactness.md E11).
// One attention program's use of it: in every round `keys`, then `take`; behind them `addStep`.
class HistoryStep : Steps {
public:
  // Loads the sums of the layer that is being worked on.
  HistoryStep(const Steps &steps, unsigned wanted)
      : Steps(steps), p(placement()), history(storeOf<RecentShares>(cache)),
        entries(storeOf<ListRows>(cache)), topK(std::min(wanted, layout().capacity)),
        rowsPerPart(ceilDiv(topK, p.parts)) {
    const Plan &plan = cache.plan;
    const History &pieces = plan.history;
    const unsigned batch = plan.shape.batch, nKvHeads = plan.shape.nKvHeads;
    lists = addLists(graph, p, batch, topK, rowsPerPart, [&](unsigned b) { return b * nKvHeads; },
                     {dc, "listed_rows"});
    shares = addLists(graph, p, plan.shape.nTasks(), topK, rowsPerPart,
                      [](unsigned task) { return task; }, {dc, "list_shares"});
    const std::size_t held = std::size_t(pieces.nPieces) * pieces.length;
    if (cache.layout().nLayers == 1) {
      sums = history.sums.reshape({batch, held});
      return;
    }
    const Tensor loaded = addPieces(graph, plan, {pieces.length}, "recent_sums");
    addPieceLoads(graph, execute("recent_sums"), cache, history.sums, loaded);
    sums = loaded.reshape({batch, held});
  }
  // The sums by position, on the parts of each slot: {slots, parts, partPositions}.
  Tensor keys(const Context &context, const Waves &waves) const {
    const Tensor keys = context.perPart(UNSIGNED_INT, {waves.partPositions()}, "window_keys");
    std::vector<Tensor> from, to;
    for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
      const unsigned b = context.task(slot) / cache.plan.shape.nKvHeads;
      from.push_back(sums[b].slice(0, waves.stride));
      to.push_back(keys[slot].flatten().slice(0, waves.stride));
    }
    copy(concat(from), concat(to), "window_keys");
    return keys;
  }
  // Of a round: how much attention each entry of the list got. `list`: the context of what attends
  // to it.
  void take(const Context &list, const Selected &selected, const Gathered &gathered) {
    const unsigned nKvHeads = cache.plan.shape.nKvHeads;
    std::vector<Tensor> ofSlots, from, to;
    for (unsigned slot = 0; slot != list.nSlots(); ++slot) {
      const unsigned task = list.task(slot);
      ofSlots.push_back(shares[task]);
      if (task % nKvHeads == 0) { // heads have the same list
        from.push_back(selected.rows[slot][0]);
        to.push_back(lists[task / nKvHeads]);
      }
    }
    if (!from.empty())
      copy(concat(from), concat(to), "listed_rows");
    ListWeights(list, topK).addShares(list.execute("list_shares"), gathered.sums, ofSlots);
  }
  // The step of all rounds into the history.
  void addStep() {
    const Plan &plan = cache.plan;
    const History &pieces = plan.history;
    const unsigned nKvHeads = plan.shape.nKvHeads, batch = plan.shape.batch;
    const Tensor ofElements =
        addLists(graph, p, batch, topK, rowsPerPart, [&](unsigned b) { return b * nKvHeads; },
                 {dc, "step_shares"});
    const ComputeSet sum = execute("sum_shares"), add = execute("add_step");
    for (unsigned b = 0; b != batch; ++b) {
      const Tensor ofHeads = shares.slice(b * nKvHeads, (b + 1) * nKvHeads);
      for (unsigned first = 0, part = 0; first < topK; first += rowsPerPart, ++part) {
        const unsigned end = std::min(first + rowsPerPart, topK);
        addVertex(graph, sum, "sparq::SumShares", p.tile(b * nKvHeads % p.slots, part),
                  cycles::sumShares(end - first, nKvHeads),
                  "ofHeads"_f = ofHeads.slice(first, end, 1),
                  "shares"_f = ofElements[b].slice(first, end), "nKvHeads"_f = nKvHeads,
                  "nRows"_f = end - first);
      }
      // Of the first head's list, from which positions are taken.
      const ListEntries listed = entries.entries(cache, b * nKvHeads);
      for (unsigned piece = 0; piece != pieces.nPieces; ++piece) {
        const unsigned tile = pieces.tile(b, piece);
        const Tensor layer = layerOn(cache, tile), step = history.step[b][piece];
        addVertex(graph, sum, "sparq::NextStep", tile, cycles::nextStep(), "layer"_f = layer,
                  "step"_f = step, "nRecent"_f = pieces.nRecent);
        addVertex(graph, add, "sparq::AddStep", tile, cycles::addStep(pieces.length, topK),
                  "filled"_f = cache.filled[b * nKvHeads], "layer"_f = layer, "step"_f = step,
                  "list"_f = lists[b], "shares"_f = ofElements[b],
                  "rows"_f = history.rows[b][piece], "sums"_f = history.sums[b][piece],
                  "topK"_f = topK, "nRecent"_f = pieces.nRecent, "length"_f = pieces.length,
                  "firstRow"_f = listed.rowBase + piece * pieces.length,
                  "layerRows"_f = listed.layerRows);
      }
    }
  }

private:
  const Placement &p;
  const RecentShares &history;
  const ListRows &entries;
  const unsigned topK, rowsPerPart;
  Tensor sums;   // {batch, positions}
  Tensor lists;  // {batch, topK}: rows of the first KV head of each element
  Tensor shares; // {nTasks, topK}
};

// Sums of shares are below this power of two; above it, selection has a pass more.
constexpr unsigned mostNarrowSteps = 1u << 14; // of a step and head 2^16 units

// The positions that are selected without a history, and how many there are: {slots, parts}.
struct Strided {
  Selected selected;
  Tensor count;
};

Strided stridedPositions(const Context &context, const WindowSettings &settings,
                         const ListRows &entries) {
  const CacheLayout &layout = context.layout();
  const unsigned topK = std::min(settings.topK, layout.capacity),
                 nLocal = std::min(settings.nLocal, topK), parts = context.parts(),
                 rowsPerPart = ceilDiv(topK, parts);
  const Tensor count = context.perPart(UNSIGNED_INT, {}, "n_listed"),
               keyRows =
                   context.sliced(UNSIGNED_INT, topK, rowsPerPart, 1, "listed_keys").squeeze({2}),
               valueRows =
                   context.sliced(UNSIGNED_INT, topK, rowsPerPart, 1, "listed_values").squeeze({2});
  const ComputeSet cs = context.execute("strided_rows");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    const ListEntries listed = entries.entries(context.cache, context.task(slot));
    for (unsigned part = 0; part != parts; ++part) {
      const unsigned first = part * rowsPerPart, end = std::min(first + rowsPerPart, topK);
      context.addVertex(cs, "sparq::StridedCount", slot, part, cycles::stridedCount(),
                        "filled"_f = context.filled(slot, part), "count"_f = count[slot][part],
                        "topK"_f = topK, "nLocal"_f = nLocal);
      if (first < topK)
        context.addVertex(
            cs, "sparq::StridedRows", slot, part, cycles::stridedRows(end - first),
            "filled"_f = context.filled(slot, part), "layer"_f = context.cache.layer[slot][part],
            "keyRows"_f = keyRows[slot].slice(first, end),
            "valueRows"_f = valueRows[slot].slice(first, end), "topK"_f = topK, "nLocal"_f = nLocal,
            "firstEntry"_f = first, "nEntries"_f = end - first, "rowBase"_f = listed.rowBase,
            "valueRow"_f = listed.valueRow, "layerRows"_f = listed.layerRows);
    }
  }
  return {{concat(keyRows.expand({1}), valueRows.expand({1}), 1), {}}, count};
}

Tensor build(const Steps &steps, const PlannedAttention &attention, const Tensor &query) {
  const WindowSettings &settings = attention.window;
  const Waves &waves = attention.waves;
  const bool remembers = settings.remembers(),
             wide = settings.nRecent * steps.plan().shape.nHeads >= mostNarrowSteps;
  const ListRows &rows = storeOf<ListRows>(steps.cache);
  std::map<std::string, Tensor> ofList;
  std::unique_ptr<HistoryStep> history;
  if (remembers)
    history = std::make_unique<HistoryStep>(steps, settings.topK);
  const auto add = [&](const Context &context, const Tensor &output) {
    QueryComponents q;
    q.query = createQuery(context);
    loadQuery(context, query, q.query);
    // What attends to the list takes the number of its entries for the length.
    const Context list{context, context.round, ofList};
    Selected selected;
    if (remembers) {
      selected = selectByKeys(context, settings, waves, history->keys(context, waves), wide, rows);
      ofList.emplace(
          "filled",
          context.variables.at("filled")); // of more positions, the list has all of its entries
    } else {
      const Strided strided = stridedPositions(context, settings, rows);
      selected = strided.selected;
      ofList.emplace("filled", strided.count);
    }
    const Gathered gathered = rows.attend(list, waves, q, selected);
    combineList(list, gathered, output);
    if (remembers)
      history->take(list, selected, gathered);
  };
  const Tensor output = addRounds(steps, add);
  if (remembers)
    history->addStep();
  return output;
}

// All positions at once, of which each part selects among its own.
Waves planWaves(const Plan &plan, const Attention &, unsigned) {
  Waves w{};
  w.stride = plan.layout.capacity;
  w.length = partLength(plan.layout.capacity, plan.placement.parts);
  w.nWaves = 1;
  w.chunk = 1;
  return w;
}

// Keys, marks, and the list with its weights; `rows`: what the listed rows take.
std::uint64_t workingBytes(const Plan &plan, const PlannedAttention &attention,
                           std::uint64_t rows) {
  const std::uint64_t g = plan.shape.groupSize(),
                      k = std::min(attention.topK(), plan.layout.capacity);
  return attention.waves.partPositions() * std::uint64_t(4) + plan.layout.capacity / 32 * 16 +
         k * (6 + 3 * g) * 4 + rows;
}

std::uint64_t streamingNeed(const Plan &plan, const PlannedAttention &attention, unsigned) {
  const Placement &p = plan.placement;
  const std::uint64_t k = std::min(attention.topK(), plan.layout.capacity), d = plan.shape.headDim,
                      partials = ceilDiv(k, block) * plan.shape.groupSize() * p.width * 4;
  return workingBytes(plan, attention, ceilDiv(k, p.parts) * d * 2 * 3 + partials);
}

std::uint64_t tieredNeed(const Plan &plan, const PlannedAttention &attention, unsigned) {
  const HotRows &hot = plan.hot;
  const std::uint64_t pieces = std::uint64_t(std::max(hot.listRows(), hot.headRows)) *
                               hot.partBytes(plan.shape.headDim, plan.placement.parts);
  return workingBytes(plan, attention, pieces);
}

} // namespace

const Kernel windowStreaming{"window-streaming", "window_attention", "window",
                             Memory::streaming,  Takes::window,      false,
                             planWaves,          streamingNeed,      build};
const Kernel windowTiered{"window-tiered", "window_attention", "window",
                          Memory::tiered,  Takes::window,      true,
                          planWaves,       tieredNeed,         build};

} // namespace sparq
