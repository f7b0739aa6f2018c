// SPDX-License-Identifier: Apache-2.0
//
// What window attention remembers (docs/exactness.md E11), in pieces by position: History
// (sparq/plan.hpp).
#pragma once

#include "store.hpp"

namespace sparq {

class RecentShares final : public Store {
public:
  static constexpr const char *what = "a history of shares";
  RecentShares(Graph &graph, const Cache &cache, bool); // of no step

  // Of all layers, UNSIGNED_INT.
  Tensor rows; // {batch, nPieces, nLayers, nRecent * length}: shares of each step
  Tensor sums; // {batch, nPieces, nLayers, length}: of all of them
  Tensor step; // {batch, nPieces, nLayers}: the row of the newest

  // The history of one layer, for the host: with one layer the tensors themselves, else others, and
  // programs that bring the layer that was loaded last there and back.
  struct OfLayer {
    Tensor rows; // {batch, nPieces, nRecent * length}
    Tensor sums; // {batch, nPieces, length}
    Tensor step; // {batch, nPieces}
    Sequence load, store;
  };
  OfLayer ofLayer(Graph &graph, const Cache &cache) const;
};

// A variable {batch, nPieces, shape...}, each piece on its tile.
Tensor addPieces(Graph &graph, const Plan &plan, const std::vector<std::size_t> &shape,
                 const std::string &name);
// The number of the layer, on a tile that has a piece.
Tensor layerOn(const Cache &cache, unsigned tile);
// Adds, for each piece, the load of a layer from `stored` {batch, nPieces, nLayers...} into
// `state`, or its store.
void addPieceMoves(Graph &graph, const ComputeSet &cs, const Cache &cache, bool loads,
                   const Tensor &stored, const Tensor &state);

} // namespace sparq
