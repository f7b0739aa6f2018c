// SPDX-License-Identifier: Apache-2.0
#include "window_history.hpp"
#include "codelets/window_history.cycles.hpp"
#include "list_weights.hpp"
#include "planning.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

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

} // namespace

HistoryStep::HistoryStep(Graph &graphIn, const Cache &cacheIn, unsigned wanted, Sequence &programIn,
                         const DebugContext &dcIn)
    : graph(graphIn), cache(cacheIn), p(cacheIn.plan.placement),
      history(storeOf<RecentShares>(cacheIn)), entries(storeOf<ListRows>(cacheIn)),
      topK(std::min(wanted, cacheIn.layout().capacity)), rowsPerPart(ceilDiv(topK, p.parts)),
      program(programIn), dc(dcIn) {
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
  const ComputeSet cs = cache.lockstep->addComputeSet(graph, {dc, "recent_sums"});
  addPieceMoves(graph, cs, cache, true, history.sums, loaded);
  program.add(Execute(cs, {dc, "recent_sums"}));
  sums = loaded.reshape({batch, held});
}

Tensor HistoryStep::keys(const Context &context, const Waves &waves) const {
  const Tensor keys = context.perPart(UNSIGNED_INT, {waves.partPositions()}, "window_keys");
  std::vector<Tensor> from, to;
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    const unsigned b = context.task(slot) / cache.plan.shape.nKvHeads;
    from.push_back(sums[b].slice(0, waves.stride));
    to.push_back(keys[slot].flatten().slice(0, waves.stride));
  }
  cache.lockstep->copy(concat(from), concat(to), program, {dc, "window_keys"});
  return keys;
}

void HistoryStep::take(const Context &list, const Selected &selected, const Gathered &gathered) {
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
    cache.lockstep->copy(concat(from), concat(to), program, {dc, "listed_rows"});
  ListWeights(list, topK).addShares(list.execute("list_shares"), gathered.sums, ofSlots);
}

void HistoryStep::addStep() {
  const Plan &plan = cache.plan;
  const History &pieces = plan.history;
  const unsigned nKvHeads = plan.shape.nKvHeads, batch = plan.shape.batch;
  const Tensor ofElements = addLists(graph, p, batch, topK, rowsPerPart,
                                     [&](unsigned b) { return b * nKvHeads; }, {dc, "step_shares"});
  const ComputeSet sum = cache.lockstep->addComputeSet(graph, {dc, "sum_shares"}),
                   add = cache.lockstep->addComputeSet(graph, {dc, "add_step"});
  for (unsigned b = 0; b != batch; ++b) {
    const Tensor ofHeads = shares.slice(b * nKvHeads, (b + 1) * nKvHeads);
    for (unsigned first = 0, part = 0; first < topK; first += rowsPerPart, ++part) {
      const unsigned end = std::min(first + rowsPerPart, topK);
      addVertex(graph, sum, "sparq::SumShares", p.tile(b * nKvHeads % p.slots, part),
                {{"ofHeads", ofHeads.slice(first, end, 1).flatten()},
                 {"shares", ofElements[b].slice(first, end)}},
                {{"nKvHeads", nKvHeads}, {"nRows", end - first}},
                cycles::sumShares(end - first, nKvHeads));
    }
    // Of the first head's list, from which positions are taken.
    const ListEntries listed = entries.entries(cache, b * nKvHeads);
    for (unsigned piece = 0; piece != pieces.nPieces; ++piece) {
      const unsigned tile = pieces.tile(b, piece);
      const Tensor layer = layerOn(cache, tile), step = history.step[b][piece];
      addVertex(graph, sum, "sparq::NextStep", tile, {{"layer", layer}, {"step", step}},
                {{"nRecent", pieces.nRecent}}, cycles::nextStep());
      addVertex(graph, add, "sparq::AddStep", tile,
                {{"filled", cache.filled[b * nKvHeads]},
                 {"layer", layer},
                 {"step", step},
                 {"list", lists[b]},
                 {"shares", ofElements[b]},
                 {"rows", history.rows[b][piece].flatten()},
                 {"sums", history.sums[b][piece].flatten()}},
                {{"topK", topK},
                 {"nRecent", pieces.nRecent},
                 {"length", pieces.length},
                 {"firstRow", listed.rowBase + piece * pieces.length},
                 {"layerRows", listed.layerRows}},
                cycles::addStep(pieces.length, topK));
    }
  }
  program.add(Execute(sum, {dc, "sum_shares"}));
  program.add(Execute(add, {dc, "add_step"}));
}

} // namespace sparq
