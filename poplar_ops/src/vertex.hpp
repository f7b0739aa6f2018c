// SPDX-License-Identifier: Apache-2.0
//
// One call to add a vertex: where, what it reads and writes, its settings, its cost.
#pragma once

#include <cstdint>
#include <poplar/Graph.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace sparq {

using Edge = std::pair<const char *, poplar::Tensor>;
using Setting = std::pair<const char *, std::variant<unsigned, float, bool>>;

inline void addVertex(poplar::Graph &graph, const poplar::ComputeSet &cs, const char *type,
                      unsigned tile, const std::vector<Edge> &edges,
                      const std::vector<Setting> &settings, std::uint64_t cycles) {
  poplar::VertexRef vertex = graph.addVertex(cs, type);
  graph.setTileMapping(vertex, tile);
  for (const Edge &edge : edges)
    graph.connect(vertex[edge.first], edge.second);
  for (const Setting &setting : settings) {
    const poplar::FieldRef field = vertex[setting.first];
    std::visit([&](auto value) { graph.setInitialValue(field, value); }, setting.second);
  }
  graph.setPerfEstimate(vertex, cycles);
}

} // namespace sparq
