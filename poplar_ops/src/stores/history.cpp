// SPDX-License-Identifier: Apache-2.0
#include "history.hpp"
#include "codelets/cache.cycles.hpp"

namespace sparq {

namespace {

// The steps that programs remember, the same in all that do.
unsigned recentSteps(const Programs &programs) {
  for (const Attention &attention : programs.attention)
    if (attention.remembers())
      return attention.window.nRecent;
  return 0;
}

} // namespace

void RecentShares::arrange(const Request &request, Plan &plan) {
  History &history = plan.history;
  history.nRecent = recentSteps(request.programs);
  // Fours, so that a piece begins at a multiple of 64 bits.
  history.nTiles = plan.placement.slots * plan.placement.parts;
  const unsigned perElement = std::max(1u, history.nTiles / plan.shape.batch);
  history.length = roundUp(ceilDiv(plan.layout.capacity, perElement), 4);
  history.nPieces = ceilDiv(plan.layout.capacity, history.length);
}

TileNeed RecentShares::need(const Plan &plan) {
  const History &history = plan.history;
  return {0, ceilDiv(std::uint64_t(plan.shape.batch) * history.nPieces, history.nTiles) *
                 history.pieceBytes(plan.layout.nLayers)};
}

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

Tensor layerOn(const Cache &cache, unsigned tile) {
  const unsigned parts = cache.plan.placement.parts;
  return cache.layer[tile / parts][tile % parts];
}

void addPieceLoads(Graph &graph, const ComputeSet &cs, const Cache &cache, const Tensor &stored,
                   const Tensor &state) {
  const History &history = cache.plan.history;
  for (unsigned b = 0; b != cache.plan.shape.batch; ++b)
    for (unsigned piece = 0; piece != history.nPieces; ++piece) {
      const unsigned tile = history.tile(b, piece);
      const auto width = static_cast<unsigned>(state[b][piece].numElements());
      addVertex(graph, cs, "sparq::LoadLayer<unsigned int>", tile, cycles::moveLayer(1, width),
                "layer"_f = layerOn(cache, tile), "stored"_f = stored[b][piece].flatten(),
                "state"_f = state[b][piece].flatten(), "nLayers"_f = cache.layout().nLayers,
                "nRows"_f = 1u, "width"_f = width);
    }
}

RecentShares::RecentShares(Graph &graph, const Cache &cache, bool) {
  const History &history = cache.plan.history;
  const std::size_t nLayers = cache.layout().nLayers, length = history.length;
  rows = addPieces(graph, cache.plan, {nLayers, history.nRecent * length},
                   cache.name + "/history_rows");
  sums = addPieces(graph, cache.plan, {nLayers, length}, cache.name + "/history_sums");
  step = addPieces(graph, cache.plan, {nLayers}, cache.name + "/history_step");
  for (const Tensor &t : {rows, sums, step})
    graph.setInitialValue(t, ArrayRef<unsigned>(std::vector<unsigned>(t.numElements(), 0)));
}

} // namespace sparq
