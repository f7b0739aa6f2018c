// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poplar/Graph.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <vector>

namespace poputil {

/// Spreads the elements of a shape evenly over tiles, from low to high, whole grains on each.
inline std::vector<std::vector<poplar::Interval>>
calcLinearTileMapping(const poplar::Target &target, std::vector<std::size_t> shape,
                      unsigned minElementsPerTile, unsigned grainSize, unsigned offset = 0,
                      bool ascendingOrder = true) {
  const std::size_t n =
      std::accumulate(shape.begin(), shape.end(), std::size_t(1), std::multiplies<std::size_t>());
  const std::size_t tiles = target.getNumTiles(), grain = std::max(grainSize, 1u);
  const std::size_t most = std::max<std::size_t>((n + tiles - 1) / tiles, minElementsPerTile);
  const std::size_t perTile = std::max<std::size_t>((most + grain - 1) / grain, 1) * grain;
  std::vector<std::vector<poplar::Interval>> mapping(tiles);
  for (std::size_t i = 0, begin = 0; begin < n; ++i, begin += perTile) {
    const std::size_t from = offset + i,
                      tile = ascendingOrder ? from : 2 * tiles - 1 - from % tiles;
    mapping[tile % tiles].emplace_back(begin, std::min(n, begin + perTile));
  }
  return mapping;
}
/// At least 128 bytes on a tile, and whole vectors of the target.
inline std::vector<std::vector<poplar::Interval>>
calcLinearTileMapping(const poplar::Target &target, const std::vector<std::size_t> shape,
                      poplar::Type elementType, unsigned offset = 0, bool ascendingOrder = true) {
  const std::size_t size = target.getTypeSize(elementType);
  return calcLinearTileMapping(target, shape, static_cast<unsigned>((127 + size) / size),
                               target.getVectorWidth(elementType), offset, ascendingOrder);
}
inline std::vector<std::vector<poplar::Interval>>
calcLinearTileMapping(const poplar::Graph &graph, std::vector<std::size_t> shape,
                      unsigned minElementsPerTile, unsigned grainSize, unsigned offset = 0,
                      bool ascendingOrder = true) {
  return calcLinearTileMapping(graph.getTarget(), shape, minElementsPerTile, grainSize, offset,
                               ascendingOrder);
}
inline std::vector<std::vector<poplar::Interval>>
calcLinearTileMapping(const poplar::Graph &graph, const poplar::Tensor &t, unsigned offset = 0,
                      bool ascendingOrder = true) {
  return calcLinearTileMapping(graph.getTarget(), t.shape(), t.elementType(), offset,
                               ascendingOrder);
}

inline void mapTensorLinearlyWithOffset(poplar::Graph &graph, const poplar::Tensor &t,
                                        unsigned minElementsPerTile, unsigned grainSize,
                                        unsigned offset, bool ascendingOrder = true) {
  graph.setTileMapping(t, calcLinearTileMapping(graph, t.shape(), minElementsPerTile, grainSize,
                                                offset, ascendingOrder));
}
inline void mapTensorLinearlyWithOffset(poplar::Graph &graph, const poplar::Tensor &t,
                                        unsigned offset = 0, bool ascendingOrder = true) {
  graph.setTileMapping(t, calcLinearTileMapping(graph, t, offset, ascendingOrder));
}
inline void mapTensorLinearly(poplar::Graph &graph, const poplar::Tensor &t,
                              unsigned minElementsPerTile, unsigned grainSize) {
  mapTensorLinearlyWithOffset(graph, t, minElementsPerTile, grainSize, 0);
}
inline void mapTensorLinearly(poplar::Graph &graph, const poplar::Tensor &t) {
  mapTensorLinearlyWithOffset(graph, t);
}

} // namespace poputil
