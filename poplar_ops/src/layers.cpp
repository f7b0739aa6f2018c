// SPDX-License-Identifier: Apache-2.0
#include "layers.hpp"
#include "context.hpp"
#include "vertex_cycles.hpp"

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
    const std::size_t nTasks = p.nTasks, nLayers = cache.layout().nLayers;
    addState(cache.filled.reshape({nTasks, 1, 1}),
             cache.stored.filled.reshape({nTasks, 1, nLayers}), 1);
  }

  void addRest() const {
    if (!cache.tail.valid())
      return;
    addState(asWords(cache.valueSum.expand({2})), asWords(cache.stored.valueSum), p.width);
    if (cache.tailIndex.valid())
      addIndexedTail();
    else
      addState(cache.tail, cache.stored.tail, cache.layout().tailComponents);
  }

private:
  // state {nTasks, rows, width}, of all layers {nTasks, rows, nLayers * width}; so many rows of a
  // task are on each part of its slot.
  void addState(const Tensor &state, const Tensor &stored, unsigned rowsPerPart) const {
    const bool words = state.elementType() != HALF;
    const std::string type = "sparq::" + direction + "Layer<" + (words ? "unsigned int>" : "half>");
    const unsigned width = static_cast<unsigned>(state.dim(2));
    forEachPart(
        state.dim(1), rowsPerPart, [&](unsigned task, unsigned part, unsigned begin, unsigned end) {
          const unsigned slot = task % p.slots;
          addVertex(graph, cs, type.c_str(), p.tile(slot, part),
                    {{"layer", cache.layer[slot][part]},
                     {"stored", stored[task].slice(begin, end).flatten()},
                     {"state", state[task].slice(begin, end).flatten()}},
                    {{"nLayers", cache.layout().nLayers}, {"nRows", end - begin}, {"width", width}},
                    cycles::moveLayer(end - begin, words ? width : width / 4));
        });
  }

  void addIndexedTail() const {
    const std::string type = "sparq::" + direction + "Tail";
    const unsigned width = static_cast<unsigned>(cache.tail.dim(2)),
                   nWords = static_cast<unsigned>(cache.tailIndex.dim(2));
    forEachPart(cache.tail.dim(1), cache.layout().tailComponents,
                [&](unsigned task, unsigned part, unsigned begin, unsigned end) {
                  const auto own = [&](const Tensor &t) {
                    return t[task].slice(begin, end).flatten();
                  };
                  const unsigned slot = task % p.slots;
                  addVertex(graph, cs, type.c_str(), p.tile(slot, part),
                            {{"layer", cache.layer[slot][part]},
                             {"storedTail", own(cache.stored.tail)},
                             {"storedIndex", own(cache.stored.tailIndex)},
                             {"tail", own(cache.tail)},
                             {"tailIndex", own(cache.tailIndex)}},
                            {{"nLayers", cache.layout().nLayers},
                             {"nRows", end - begin},
                             {"width", width},
                             {"nWords", nWords}},
                            cycles::moveTail(end - begin, width / 4, nWords));
                });
  }

  // Calls use(task, part, begin, end) for the rows of every part of every task.
  template <class Use>
  void forEachPart(std::size_t nRows, unsigned rowsPerPart, const Use &use) const {
    const unsigned n = static_cast<unsigned>(nRows);
    for (unsigned task = 0; task != p.nTasks; ++task)
      for (unsigned begin = 0, part = 0; begin < n; begin += rowsPerPart, ++part)
        use(task, part, begin, std::min(begin + rowsPerPart, n));
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
  const auto moves = [&](bool loads) {
    const std::string name = cache.name + (loads ? "/load_layer" : "/store_layer");
    const ComputeSet cs = graph.addComputeSet({name});
    Sequence program({Execute(cs, {name})}, {name});
    const Moves all(graph, cache, cs, loads);
    all.addRest();
    if (!cache.layout().tiered) {
      all.addLengths();
      return program;
    }
    // There the tail can come from streaming memory. Control flow depends on lengths, and must not on that.
    const ComputeSet ofLengths = graph.addComputeSet({name + "_lengths"});
    Moves(graph, cache, ofLengths, loads).addLengths();
    program.add(Execute(ofLengths, {name + "_lengths"}));
    return program;
  };
  cache.load = graph.addFunction(
      Sequence({Copy(cache.layerNumber.expand({0, 0}).broadcast(p.slots, 0).broadcast(p.parts, 1),
                     cache.layer, false, {cache.name + "/layer"}),
                moves(true)},
               {cache.name + "/load_layer"}));
  cache.store = graph.addFunction(moves(false));
}

void loadLayer(const Cache &cache, Sequence &program, const DebugContext &dc) {
  if (cache.layout().nLayers != 1)
    program.add(Call(cache.load, {dc, "load_layer"}));
}

void selectLayer(Graph &graph, const Cache &cache, unsigned layer, Sequence &program,
                 const DebugContext &dc) {
  if (cache.layout().nLayers == 1)
    return;
  const Tensor number = graph.addConstant(UNSIGNED_INT, {}, layer, {dc, "layer_number"});
  graph.setTileMapping(number, 0);
  program.add(Copy(number, cache.layerNumber, false, {dc, "layer_number"}));
}

void storeLayer(const Cache &cache, Sequence &program, const DebugContext &dc) {
  if (cache.layout().nLayers != 1)
    program.add(Call(cache.store, {dc, "store_layer"}));
}

} // namespace sparq
