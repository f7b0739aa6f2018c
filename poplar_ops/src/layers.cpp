// SPDX-License-Identifier: Apache-2.0
#include "sparq/layers.hpp"
#include "context.hpp"
#include "vertex_cycles.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

// One part of a layer's state: {nTasks, rows, width}, and of all layers {nTasks, rows, nLayers *
// width}; so many rows of a task are on each part of its slot.
struct Part {
  Tensor state, stored;
  unsigned rowsPerPart;
};

// Of words: fp32 numbers are copied as such.
Tensor asWords(const Tensor &t) {
  return t.elementType() == FLOAT ? t.reinterpret(UNSIGNED_INT) : t;
}

std::vector<Part> parts(const Cache &cache) {
  const std::size_t nTasks = cache.plan.shape.nTasks(), nLayers = cache.layout().nLayers;
  std::vector<Part> all{
      {cache.filled.reshape({nTasks, 1, 1}), cache.stored.filled.reshape({nTasks, 1, nLayers}), 1}};
  const auto add = [&](const Tensor &state, const Tensor &stored, unsigned rowsPerPart) {
    if (state.valid())
      all.push_back({asWords(state), asWords(stored), rowsPerPart});
  };
  if (cache.valueSum.valid())
    add(cache.valueSum.expand({2}), cache.stored.valueSum, cache.plan.placement.width);
  add(cache.tail, cache.stored.tail, cache.layout().tailComponents);
  add(cache.tailIndex, cache.stored.tailIndex, cache.layout().tailComponents);
  return all;
}

// Adds the vertices `type`, a class template, for every piece of the state.
void addMoves(Graph &graph, const Cache &cache, const std::string &type, const ComputeSet &cs) {
  const Placement &p = cache.plan.placement;
  for (const Part &part : parts(cache))
    for (unsigned task = 0; task != p.nTasks; ++task) {
      const Tensor state = part.state[task], stored = part.stored[task];
      const unsigned nRows = static_cast<unsigned>(state.dim(0)),
                     width = static_cast<unsigned>(state.dim(1)), slot = task % p.slots;
      const bool halves = state.elementType() == HALF;
      const std::string name = type + (halves ? "<half>" : "<unsigned int>");
      for (unsigned first = 0, i = 0; first < nRows; first += part.rowsPerPart, ++i) {
        const unsigned end = std::min(first + part.rowsPerPart, nRows);
        addVertex(graph, cs, name.c_str(), p.tile(slot, i),
                  {{"layer", cache.layer[slot][i]},
                   {"stored", stored.slice(first, end).flatten()},
                   {"state", state.slice(first, end).flatten()}},
                  {{"nLayers", cache.layout().nLayers}, {"nRows", end - first}, {"width", width}},
                  cycles::moveLayer(end - first, halves ? width / 4 : width));
      }
    }
}

} // namespace

void loadLayer(Graph &graph, const Cache &cache, Sequence &program, const DebugContext &dc) {
  if (cache.layout().nLayers == 1)
    return;
  const Placement &p = cache.plan.placement;
  program.add(Copy(cache.layerNumber.expand({0, 0}).broadcast(p.slots, 0).broadcast(p.parts, 1),
                   cache.layer, false, {dc, "layer"}));
  const ComputeSet cs = graph.addComputeSet({dc, "load_layer"});
  addMoves(graph, cache, "sparq::LoadLayer", cs);
  program.add(Execute(cs, {dc, "load_layer"}));
}

void loadLayer(Graph &graph, const Cache &cache, unsigned layer, Sequence &program,
               const DebugContext &dc) {
  if (cache.layout().nLayers == 1)
    return;
  const Tensor number = graph.addConstant(UNSIGNED_INT, {}, layer, {dc, "layer_number"});
  graph.setTileMapping(number, 0);
  program.add(Copy(number, cache.layerNumber, false, {dc, "layer_number"}));
  loadLayer(graph, cache, program, dc);
}

void storeLayer(Graph &graph, const Cache &cache, Sequence &program, const DebugContext &dc) {
  if (cache.layout().nLayers == 1)
    return;
  const ComputeSet cs = graph.addComputeSet({dc, "store_layer"});
  addMoves(graph, cache, "sparq::StoreLayer", cs);
  program.add(Execute(cs, {dc, "store_layer"}));
}

} // namespace sparq
