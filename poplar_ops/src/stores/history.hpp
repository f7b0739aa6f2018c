// SPDX-License-Identifier: Apache-2.0
//
// What window attention remembers (docs/exactness.md E11), in pieces by position: History
// (sparq/plan.hpp).
#pragma once

#include "store.hpp"

namespace sparq {

class RecentShares final : public Store {
public:
  static void arrange(const Request &request, Plan &plan);
  static TileNeed need(const Plan &plan);
  RecentShares(Graph &graph, const Cache &cache, bool); // of no step

  // Of all layers, UNSIGNED_INT.
  Tensor rows; // {batch, nPieces, nLayers, nRecent * length}: shares of each step
  Tensor sums; // {batch, nPieces, nLayers, length}: of all of them
  Tensor step; // {batch, nPieces, nLayers}: the row of the newest
};

// A variable {batch, nPieces, shape...}, each piece on its tile.
Tensor addPieces(Graph &graph, const Plan &plan, const std::vector<std::size_t> &shape,
                 const std::string &name);
// The number of the layer, on a tile that has a piece.
Tensor layerOn(const Cache &cache, unsigned tile);
// Adds, for each piece, the load of a layer from `stored` {batch, nPieces, nLayers...} into
// `state`.
void addPieceLoads(Graph &graph, const ComputeSet &cs, const Cache &cache, const Tensor &stored,
                   const Tensor &state);

} // namespace sparq
