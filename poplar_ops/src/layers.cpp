// SPDX-License-Identifier: Apache-2.0
#include "codelets/layers.cycles.hpp"
#include "layer_moves.hpp"
#include "stores/store.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

// Of words: fp32 numbers are copied as such.
Tensor asWords(const Tensor &t) {
  return t.elementType() != FLOAT ? t : t.reinterpret(UNSIGNED_INT);
}

// The vertices of one direction.
class Moves {
public:
  Moves(Graph &graphIn, const Cache &cacheIn, const ComputeSet &csIn, bool loads)
      : graph(graphIn), cache(cacheIn), p(cacheIn.plan.placement), cs(csIn),
        direction(loads ? "Load" : "Store") {}

  void addLengths() const {
    Layered filled;
    filled.state = cache.filled.reshape({p.nTasks, 1, 1});
    filled.stored = cache.storedFilled;
    filled.rowsPerPart = 1;
    addState(filled);
  }

  // What is made from others comes first.
  void addStores() const {
    for (auto store = cache.stores.rbegin(); store != cache.stores.rend(); ++store)
      for (const Layered &layered : (*store)->layered())
        if (layered.words.valid())
          addWithWords(layered);
        else
          addState(layered);
  }

private:
  void addState(const Layered &layered) const {
    const Tensor state = asWords(layered.state), stored = asWords(layered.stored);
    const bool words = state.elementType() != HALF;
    const std::string type = "sparq::" + direction + "Layer<" + (words ? "unsigned int>" : "half>");
    const unsigned width = static_cast<unsigned>(state.dim(2));
    forEachPart(layered, [&](unsigned task, unsigned part, unsigned begin, unsigned end) {
      const unsigned slot = task % p.slots;
      addVertex(graph, cs, type.c_str(), p.tile(slot, part),
                {{"layer", cache.layer[slot][part]},
                 {"stored", stored[task].slice(begin, end).flatten()},
                 {"state", state[task].slice(begin, end).flatten()}},
                {{"nLayers", cache.layout().nLayers}, {"nRows", end - begin}, {"width", width}},
                cycles::moveLayer(end - begin, words ? width : width / 4));
    });
  }

  void addWithWords(const Layered &tail) const {
    const std::string type = "sparq::" + direction + "Tail";
    const unsigned width = static_cast<unsigned>(tail.state.dim(2)),
                   nWords = static_cast<unsigned>(tail.words.dim(2));
    forEachPart(tail, [&](unsigned task, unsigned part, unsigned begin, unsigned end) {
      const auto own = [&](const Tensor &t) { return t[task].slice(begin, end).flatten(); };
      const unsigned slot = task % p.slots;
      addVertex(graph, cs, type.c_str(), p.tile(slot, part),
                {{"layer", cache.layer[slot][part]},
                 {"storedTail", own(tail.stored)},
                 {"storedIndex", own(tail.storedWords)},
                 {"tail", own(tail.state)},
                 {"tailIndex", own(tail.words)}},
                {{"nLayers", cache.layout().nLayers},
                 {"nRows", end - begin},
                 {"width", width},
                 {"nWords", nWords}},
                cycles::moveTail(end - begin, width / 4, nWords));
    });
  }

  // Calls use(task, part, begin, end) for the rows of every part of every task.
  template <class Use> void forEachPart(const Layered &layered, const Use &use) const {
    const unsigned n = static_cast<unsigned>(layered.state.dim(1)), each = layered.rowsPerPart;
    for (unsigned task = 0; task != p.nTasks; ++task)
      for (unsigned begin = 0, part = 0; begin < n; begin += each, ++part)
        use(task, part, begin, std::min(begin + each, n));
  }

  Graph &graph;
  const Cache &cache;
  const Placement &p;
  const ComputeSet &cs;
  const std::string direction;
};

} // namespace

void addLayerFunctions(Graph &graph, Cache &cache) {
  const Placement &p = cache.plan.placement;
  bool lengthsApart = false;
  for (const auto &store : cache.stores)
    lengthsApart = lengthsApart || store->lengthsApart();
  const auto moves = [&](bool loads) {
    const std::string name = cache.name + (loads ? "/load_layer" : "/store_layer");
    const ComputeSet cs = cache.lockstep->addComputeSet(graph, {name});
    Sequence program({Execute(cs, {name})}, {name});
    const Moves all(graph, cache, cs, loads);
    all.addStores();
    if (!lengthsApart) {
      all.addLengths();
      return program;
    }
    const ComputeSet ofLengths = cache.lockstep->addComputeSet(graph, {name + "_lengths"});
    Moves(graph, cache, ofLengths, loads).addLengths();
    program.add(Execute(ofLengths, {name + "_lengths"}));
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
