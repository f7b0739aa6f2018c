// SPDX-License-Identifier: Apache-2.0
// Vertices of the library's own, one on every tile: they read and write what a tile has beside its
// memory.
#pragma once

#include <poplar/Graph.hpp>

#include "core.hpp"

namespace poplar {
namespace core {

/// A vertex type that such a library function runs; V is its state.
template <class V, unsigned n>
constexpr codelet_abi::Vertex tileVertexType(const char *name,
                                             const codelet_abi::Field (&fields)[n],
                                             bool (*run)(void *, unsigned), unsigned tokens) {
  return {name, codelet_abi::VertexKind::Vertex, sizeof(V), alignof(V), fields, n, run, tokens};
}

/// Adds to `prog` a compute set with a vertex on every tile of the graph; connect(vertex, tile)
/// fills its fields.
template <class Connect>
void addOnEveryTile(Graph &graph, const codelet_abi::Vertex &type, unsigned cycles,
                    program::Sequence &prog, const DebugContext &dc, Connect connect) {
  GraphImpl &g = Access::impl(graph);
  g.codelets[type.name] = &type;
  g.askWorker.insert(&type);
  ComputeSet cs = graph.addComputeSet({dc, type.name});
  for (unsigned tile = 0; tile < graph.getTarget().getNumTiles(); ++tile) {
    VertexRef v = graph.addVertex(cs, type.name);
    connect(v, tile);
    graph.setTileMapping(v, tile);
    graph.setPerfEstimate(v, cycles);
  }
  prog.add(program::Execute(cs, dc));
}

} // namespace core
} // namespace poplar
