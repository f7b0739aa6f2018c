// SPDX-License-Identifier: Apache-2.0
//
// Window attention (arXiv:2403.17312, Algorithm 1; docs/exactness.md E11): the steps in order.
// Every KV head selects for itself, at the same time and the same positions: a list made once would
// have to be sent to all of them.
#include "codelets/window_history.cycles.hpp"
#include "combine.hpp"
#include "stores/rows.hpp"
#include "window_history.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

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
      addVertex(context.graph, cs, "sparq::StridedCount", context.tile(slot, part),
                {{"filled", context.filled(slot, part)}, {"count", count[slot][part]}},
                {{"topK", topK}, {"nLocal", nLocal}}, cycles::stridedCount());
      if (first < topK)
        addVertex(context.graph, cs, "sparq::StridedRows", context.tile(slot, part),
                  {{"filled", context.filled(slot, part)},
                   {"layer", context.cache.layer[slot][part]},
                   {"keyRows", keyRows[slot].slice(first, end)},
                   {"valueRows", valueRows[slot].slice(first, end)}},
                  {{"topK", topK},
                   {"nLocal", nLocal},
                   {"firstEntry", first},
                   {"nEntries", end - first},
                   {"rowBase", listed.rowBase},
                   {"valueRow", listed.valueRow},
                   {"layerRows", listed.layerRows}},
                  cycles::stridedRows(end - first));
    }
  }
  return {{concat(keyRows.expand({1}), valueRows.expand({1}), 1), {}}, count};
}

Tensor build(Graph &graph, const Cache &cache, const PlannedAttention &attention,
             const Tensor &query, Sequence &program, const DebugContext &dc) {
  const Shape &shape = cache.plan.shape;
  const Placement &p = cache.plan.placement;
  const WindowSettings &settings = attention.window;
  const Waves &waves = attention.waves;
  const bool remembers = settings.remembers(),
             wide = settings.nRecent * shape.nHeads >= mostNarrowSteps;
  const ListRows &rows = storeOf<ListRows>(cache);
  std::map<std::string, Tensor> variables, ofList;
  const Tensor output = createOutput(graph, cache, {dc, "output"});
  std::unique_ptr<HistoryStep> history;
  if (remembers)
    history = std::make_unique<HistoryStep>(graph, cache, settings.topK, program, dc);
  for (unsigned round = 0; round != p.nRounds; ++round) {
    const Context context{graph, cache, round, program, dc, variables};
    const std::size_t first = p.firstTask(round);
    QueryComponents q;
    q.query = createQuery(context);
    loadQuery(context, query, q.query);
    // What attends to the list takes the number of its entries for the length.
    const Context list{graph, cache, round, program, dc, ofList};
    Selected selected;
    if (remembers) {
      selected = selectByKeys(context, settings, waves, history->keys(context, waves), wide, rows);
      ofList.emplace("filled",
                     variables.at("filled")); // of more positions, the list has all of its entries
    } else {
      const Strided strided = stridedPositions(context, settings, rows);
      selected = strided.selected;
      ofList.emplace("filled", strided.count);
    }
    const Gathered gathered = rows.attend(list, waves, q, selected);
    combineList(list, gathered, output.slice(first, first + p.nActive(round), 0));
    if (remembers)
      history->take(list, selected, gathered);
  }
  if (remembers)
    history->addStep();
  return output.reshape({shape.batch, shape.nHeads, shape.headDim});
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

Kernel kernel(const char *name, Memory memory) {
  Kernel k;
  k.name = name;
  k.op = "window_attention";
  k.prefix = "window";
  k.memory = memory;
  k.takes = Takes::window;
  k.waves = planWaves;
  k.build = build;
  return k;
}

} // namespace

const Kernel windowStreaming = [] {
  Kernel k = kernel("window-streaming", Memory::streaming);
  k.need = streamingNeed;
  return k;
}();
const Kernel windowTiered = [] {
  Kernel k = kernel("window-tiered", Memory::tiered);
  k.keyColumns = true;
  k.need = tieredNeed;
  return k;
}();

} // namespace sparq
