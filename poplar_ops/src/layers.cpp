// SPDX-License-Identifier: Apache-2.0
#include "codelets/cache.cycles.hpp"
#include "sparq/cache.hpp"
#include "stores/store.hpp"

namespace sparq {

namespace {

// Of words: fp32 numbers are copied as such.
Tensor asWords(const Tensor &t) {
  return t.elementType() != FLOAT ? t : t.reinterpret(UNSIGNED_INT);
}

// Adds the vertices that load or store, in `cs`.
void addMoves(const Steps &steps, const ComputeSet &cs, bool loads, const Layered &layered) {
  const Cache &cache = steps.cache;
  const Placement &p = steps.placement();
  const Tensor state = asWords(layered.state), stored = asWords(layered.stored);
  const bool words = state.elementType() != HALF;
  const std::string type = std::string(loads ? "sparq::Load" : "sparq::Store") +
                           (words ? "Layer<unsigned int>" : "Layer<half>");
  const unsigned width = static_cast<unsigned>(state.dim(2)),
                 n = static_cast<unsigned>(state.dim(1)), each = layered.rowsPerPart;
  for (unsigned task = 0; task != p.nTasks; ++task)
    for (unsigned begin = 0, part = 0; begin < n; begin += each, ++part) {
      const unsigned end = std::min(begin + each, n), slot = task % p.slots;
      addVertex(steps.graph, cs, type.c_str(), p.tile(slot, part),
                cycles::moveLayer(end - begin, words ? width : width / 4),
                "layer"_f = cache.layer[slot][part], "nLayers"_f = cache.layout().nLayers,
                "nRows"_f = end - begin, "width"_f = width,
                "stored"_f = stored[task].slice(begin, end),
                "state"_f = state[task].slice(begin, end));
    }
}

} // namespace

void addLayerFunctions(Graph &graph, Cache &cache) {
  const Placement &p = cache.plan.placement;
  // What is layered in three tiers may come from streaming memory. Lengths are then moved
  // separately, because control flow depends on them and must not depend on streaming memory.
  const bool lengthsApart = cache.plan.hot.nPlaces != 0;
  const auto moves = [&](bool loads) {
    const std::string name = cache.name + (loads ? "/load_layer" : "/store_layer");
    Sequence program({}, {name});
    const DebugContext dc{name};
    const Steps steps{graph, cache, program, dc};
    const ComputeSet cs = cache.lockstep->execute(graph, program, dc);
    for (auto store = cache.stores.rbegin(); store != cache.stores.rend(); ++store)
      for (const Layered &layered : (*store)->layered()) // what is made from others comes first
        addMoves(steps, cs, loads, layered);
    Layered filled;
    filled.state = cache.filled.reshape({p.nTasks, 1, 1});
    filled.stored = cache.storedFilled;
    filled.rowsPerPart = 1;
    addMoves(steps,
             lengthsApart ? cache.lockstep->execute(graph, program, {name + "_lengths"}) : cs,
             loads, filled);
    return program;
  };
  Sequence load({}, {cache.name + "/load_layer"});
  cache.lockstep->copy(cache.layerNumber.expand({0, 0}).broadcast(p.slots, 0).broadcast(p.parts, 1),
                       cache.layer, load, {cache.name + "/layer"});
  load.add(moves(true));
  cache.load = cache.lockstep->addFunction(graph, load);
  cache.store = cache.lockstep->addFunction(graph, moves(false));
}

void loadLayer(const Cache &cache, Sequence &program, const DebugContext &dc) {
  if (cache.layout().nLayers != 1)
    cache.lockstep->call(cache.load, program, {dc, "load_layer"});
}

void selectLayer(Graph &graph, const Cache &cache, unsigned layer, Sequence &program,
                 const DebugContext &dc, Lockstep *together) {
  if (cache.layout().nLayers == 1)
    return;
  Lockstep alone;
  const Tensor number = graph.addConstant(UNSIGNED_INT, {}, layer, {dc, "layer_number"});
  graph.setTileMapping(number, 0);
  (together ? *together : alone).copy(number, cache.layerNumber, program, {dc, "layer_number"});
}

void storeLayer(const Cache &cache, Sequence &program, const DebugContext &dc) {
  if (cache.layout().nLayers != 1)
    cache.lockstep->call(cache.store, program, {dc, "store_layer"});
}

} // namespace sparq
