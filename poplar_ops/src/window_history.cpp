// SPDX-License-Identifier: Apache-2.0
#include "window_history.hpp"
#include "list_weights.hpp"
#include "planning.hpp"
#include "vertex_cycles.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

// A variable {batch, nPieces, shape...}, each piece on its tile.
Tensor addPieces(Graph &graph, const Plan &plan, const std::vector<std::size_t> &shape,
                 const std::string &name) {
  const History &history = plan.history;
  std::vector<std::size_t> full{plan.shape.batch, history.nPieces};
  full.insert(full.end(), shape.begin(), shape.end());
  const Tensor t = graph.addVariable(UNSIGNED_INT, full, {name});
  for (unsigned b = 0; b != plan.shape.batch; ++b)
    for (unsigned piece = 0; piece != history.nPieces; ++piece)
      graph.setTileMapping(t[b][piece], history.tile(b, piece));
  return t;
}

// The number of the layer, on a tile that has a piece.
Tensor layerOn(const Cache &cache, unsigned tile) {
  const unsigned parts = cache.plan.placement.parts;
  return cache.layer[tile / parts][tile % parts];
}

// Adds, for each piece, the load of a layer from `stored` {batch, nPieces, nLayers...} into `state`, or its store.
void addMoves(Graph &graph, const ComputeSet &cs, const Cache &cache, bool loads,
              const Tensor &stored, const Tensor &state) {
  const char *const type =
      loads ? "sparq::LoadLayer<unsigned int>" : "sparq::StoreLayer<unsigned int>";
  const History &history = cache.plan.history;
  for (unsigned b = 0; b != cache.plan.shape.batch; ++b)
    for (unsigned piece = 0; piece != history.nPieces; ++piece) {
      const unsigned tile = history.tile(b, piece);
      const auto width = static_cast<unsigned>(state[b][piece].numElements());
      addVertex(graph, cs, type, tile,
                {{"layer", layerOn(cache, tile)},
                 {"stored", stored[b][piece].flatten()},
                 {"state", state[b][piece].flatten()}},
                {{"nLayers", cache.layout().nLayers}, {"nRows", 1u}, {"width", width}},
                cycles::moveLayer(1, width));
    }
}

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

void addHistory(Graph &graph, Cache &cache) {
  const History &history = cache.plan.history;
  const std::size_t nLayers = cache.layout().nLayers, length = history.length;
  cache.history.rows = addPieces(graph, cache.plan, {nLayers, history.nRecent * length},
                                 cache.name + "/history_rows");
  cache.history.sums =
      addPieces(graph, cache.plan, {nLayers, length}, cache.name + "/history_sums");
  cache.history.step = addPieces(graph, cache.plan, {nLayers}, cache.name + "/history_step");
  for (const Tensor &t : {cache.history.rows, cache.history.sums, cache.history.step})
    graph.setInitialValue(t, ArrayRef<unsigned>(std::vector<unsigned>(t.numElements(), 0)));
}

HistoryOfLayer historyOfLayer(Graph &graph, const Cache &cache) {
  const History &history = cache.plan.history;
  const auto &stored = cache.history;
  if (cache.layout().nLayers == 1)
    return {stored.rows.squeeze({2}), stored.sums.squeeze({2}), stored.step.squeeze({2}), {}, {}};
  const auto add = [&](const std::vector<std::size_t> &shape, const char *what) {
    return addPieces(graph, cache.plan, shape, cache.name + what);
  };
  const HistoryOfLayer layer{
      add({std::size_t(history.nRecent) * history.length}, "/history_rows_of_layer"),
      add({history.length}, "/history_sums_of_layer"),
      add({}, "/history_step_of_layer"),
      {},
      {}};
  const auto moves = [&](bool loads) {
    const DebugContext dc{cache.name + (loads ? "/load_history" : "/store_history")};
    const ComputeSet cs = graph.addComputeSet(dc);
    addMoves(graph, cs, cache, loads, stored.rows, layer.rows);
    addMoves(graph, cs, cache, loads, stored.sums, layer.sums);
    addMoves(graph, cs, cache, loads, stored.step, layer.step);
    return Sequence({Execute(cs, dc)}, dc);
  };
  return {layer.rows, layer.sums, layer.step, moves(true), moves(false)};
}

HistoryStep::HistoryStep(Graph &graphIn, const Cache &cacheIn, unsigned wanted, Sequence &programIn,
                         const DebugContext &dcIn)
    : graph(graphIn), cache(cacheIn), p(cacheIn.plan.placement),
      topK(std::min(wanted, cacheIn.layout().capacity)), rowsPerPart(ceilDiv(topK, p.parts)),
      program(programIn), dc(dcIn) {
  const Plan &plan = cache.plan;
  const History &history = plan.history;
  const unsigned batch = plan.shape.batch, nKvHeads = plan.shape.nKvHeads;
  lists = addLists(graph, p, batch, topK, rowsPerPart, [&](unsigned b) { return b * nKvHeads; },
                   {dc, "listed_rows"});
  shares = addLists(graph, p, plan.shape.nTasks(), topK, rowsPerPart,
                    [](unsigned task) { return task; }, {dc, "list_shares"});
  const std::size_t held = std::size_t(history.nPieces) * history.length;
  if (cache.layout().nLayers == 1) {
    sums = cache.history.sums.reshape({batch, held});
    return;
  }
  const Tensor loaded = addPieces(graph, plan, {history.length}, "recent_sums");
  const ComputeSet cs = graph.addComputeSet({dc, "recent_sums"});
  addMoves(graph, cs, cache, true, cache.history.sums, loaded);
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
  program.add(Copy(concat(from), concat(to), false, {dc, "window_keys"}));
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
    program.add(Copy(concat(from), concat(to), false, {dc, "listed_rows"}));
  ListWeights(list, topK).addShares(list.execute("list_shares"), gathered.sums, ofSlots);
}

void HistoryStep::addStep() {
  const Plan &plan = cache.plan;
  const History &history = plan.history;
  const unsigned nKvHeads = plan.shape.nKvHeads, batch = plan.shape.batch;
  const Tensor ofElements = addLists(graph, p, batch, topK, rowsPerPart,
                                     [&](unsigned b) { return b * nKvHeads; }, {dc, "step_shares"});
  const ComputeSet sum = graph.addComputeSet({dc, "sum_shares"}),
                   add = graph.addComputeSet({dc, "add_step"});
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
    // Rows of the first head's list, from which positions are taken.
    const CacheLayout &layout = cache.layout();
    const unsigned firstRow =
        layout.tiered ? 0 : static_cast<unsigned>(layout.keyRow(b * nKvHeads, 0));
    for (unsigned piece = 0; piece != history.nPieces; ++piece) {
      const unsigned tile = history.tile(b, piece);
      const Tensor layer = layerOn(cache, tile), step = cache.history.step[b][piece];
      addVertex(graph, sum, "sparq::NextStep", tile, {{"layer", layer}, {"step", step}},
                {{"nRecent", history.nRecent}}, cycles::nextStep());
      addVertex(graph, add, "sparq::AddStep", tile,
                {{"filled", cache.filled[b * nKvHeads]},
                 {"layer", layer},
                 {"step", step},
                 {"list", lists[b]},
                 {"shares", ofElements[b]},
                 {"rows", cache.history.rows[b][piece].flatten()},
                 {"sums", cache.history.sums[b][piece].flatten()}},
                {{"topK", topK},
                 {"nRecent", history.nRecent},
                 {"length", history.length},
                 {"firstRow", firstRow + piece * history.length},
                 {"layerRows", layout.tiered ? 0 : cache.layerRows()}},
                cycles::addStep(history.length, topK));
    }
  }
  program.add(Execute(sum, {dc, "sum_shares"}));
  program.add(Execute(add, {dc, "add_step"}));
}

} // namespace sparq
