// SPDX-License-Identifier: Apache-2.0
#include "context.hpp"
#include "codelets/cache_append.cycles.hpp"
#include "codelets/cycles.hpp"
#include "codelets/waves.cycles.hpp"
#include "sparq/step_names.hpp"
#include <limits>

namespace sparq {

using namespace poplar;
using namespace poplar::program;

Tensor addPerPart(Graph &graph, const Placement &placement, const Type &type, unsigned nParts,
                  const std::vector<std::size_t> &shape, const DebugContext &dc) {
  std::vector<std::size_t> full{placement.slots, nParts};
  std::size_t each = 1;
  for (const std::size_t n : shape) {
    full.push_back(n);
    each *= n;
  }
  const Tensor tensor = graph.addVariable(type, full, dc);
  Graph::TileToTensorMapping mapping(graph.getTarget().getNumTiles());
  for (unsigned slot = 0; slot != placement.slots; ++slot)
    for (unsigned part = 0; part != nParts; ++part) {
      const std::size_t begin = (std::size_t(slot) * nParts + part) * each;
      mapping[placement.tile(slot, part % placement.parts)].emplace_back(begin, begin + each);
    }
  graph.setTileMapping(tensor, mapping);
  return tensor;
}

Tensor addZeroPerPart(Graph &graph, const Placement &placement, const DebugContext &dc) {
  const std::size_t slots = placement.slots, parts = placement.parts;
  const Tensor zero = graph.addConstant(UNSIGNED_INT, {slots, parts}, 0u, dc);
  for (unsigned slot = 0; slot != slots; ++slot)
    for (unsigned part = 0; part != parts; ++part)
      graph.setTileMapping(zero[slot][part], placement.tile(slot, part));
  return zero;
}

Tensor addSliced(Graph &graph, const Placement &placement, const Type &type, unsigned nOuter,
                 std::size_t extent, std::size_t piece, std::size_t inner, const DebugContext &dc) {
  const Tensor tensor = graph.addVariable(type, {nOuter, extent, inner}, dc);
  Graph::TileToTensorMapping mapping(graph.getTarget().getNumTiles());
  for (unsigned outer = 0; outer != nOuter; ++outer)
    for (std::size_t begin = 0, part = 0; begin < extent; begin += piece, ++part) {
      const std::size_t end = std::min(begin + piece, extent), base = outer * extent;
      const unsigned tile =
          placement.tile(outer % placement.slots, static_cast<unsigned>(part % placement.parts));
      mapping[tile].emplace_back((base + begin) * inner, (base + end) * inner);
    }
  graph.setTileMapping(tensor, mapping);
  return tensor;
}

Tensor addOnParts(Graph &graph, const Placement &placement, const Type &type, unsigned n,
                  const std::vector<std::size_t> &shape, const DebugContext &dc,
                  unsigned firstPart) {
  std::vector<std::size_t> full{placement.nTasks, n};
  full.insert(full.end(), shape.begin(), shape.end());
  const Tensor t = graph.addVariable(type, full, dc);
  for (unsigned task = 0; task != placement.nTasks; ++task)
    for (unsigned i = 0; i != n; ++i)
      graph.setTileMapping(
          t[task][i], placement.tile(task % placement.slots, (firstPart + i) % placement.parts));
  return t;
}

Tensor Context::perPart(const Type &type, const std::vector<std::size_t> &shape,
                        const char *name) const {
  return once(name,
              [&] { return addPerPart(graph, placement(), type, parts(), shape, {dc, name}); });
}

WaveIndex Context::waveIndex(unsigned nWaves) const {
  WaveIndex wave;
  if (nWaves == 1)
    wave.zero =
        once("only_wave", [&] { return addZeroPerPart(graph, placement(), {dc, "only_wave"}); });
  else
    wave.counter = once("wave", [&] {
      const Tensor t = graph.addVariable(UNSIGNED_INT, {}, {dc, "wave"});
      graph.setTileMapping(t, 0);
      return t;
    });
  return wave;
}

Tensor Context::sliced(const Type &type, std::size_t extent, std::size_t piece, std::size_t inner,
                       const char *name) const {
  return once(name, [&] {
    return addSliced(graph, placement(), type, placement().slots, extent, piece, inner, {dc, name});
  });
}

const Type &columnType(const CacheLayout &layout) {
  return layout.quantised() ? UNSIGNED_INT : HALF;
}

Tensor createOutput(Graph &graph, const Cache &cache, const DebugContext &dc) {
  const Shape &shape = cache.plan.shape;
  const Placement &p = cache.plan.placement;
  const std::size_t d = shape.headDim, g = shape.groupSize(), nTasks = shape.nTasks();
  return addSliced(graph, p, HALF, shape.nTasks(), d / 8, p.width / 8, g * 8, dc)
      .reshape({nTasks, d / 8, g, 8})
      .dimShuffle({0, 2, 1, 3})
      .reshape({nTasks, g, d});
}

void checkTensor(const std::string &op, const char *argument, const Tensor &tensor,
                 const Type &type, const std::vector<std::size_t> &shape) {
  const auto text = [](const std::vector<std::size_t> &dims) {
    std::string s = "(";
    for (std::size_t i = 0; i != dims.size(); ++i)
      s += (i ? ", " : "") + std::to_string(dims[i]);
    return s + (dims.size() == 1 ? ",)" : ")");
  };
  if (tensor.elementType() != type)
    throw Error(op + ": " + argument + " must have type " + std::string(type.toString()) +
                ", got " + std::string(tensor.elementType().toString()));
  if (tensor.shape() != shape)
    throw Error(op + ": " + argument + " must have shape " + text(shape) + ", got " +
                text(tensor.shape()));
}

// {6} UNSIGNED_INT on tile 0: positions of the round's longest row in full chunks, found once, by
// the first loop of the round.
static Tensor longestRow(const Context &context, const Waves &waves) {
  return context.once("longest_row_" + std::to_string(context.round), [&] {
    const unsigned nSlots = context.nSlots(), first = context.task(0);
    const Tensor t =
        context.graph.addVariable(UNSIGNED_INT, {cycles::nWorkers}, {context.dc, "longest_row"});
    context.graph.setTileMapping(t, 0);
    addVertex(context.graph, context.execute("longest_row"), "sparq::LongestRow", 0,
              {{"filled", context.cache.filled.slice(first, first + nSlots, 0)}, {"longest", t}},
              {{"nSlots", nSlots}, {"chunk", waves.chunk}}, cycles::longestRow(nSlots));
    return t;
  });
}

void addWaveLoop(const Context &context, const Waves &waves, const WaveIndex &wave,
                 const Sequence &body) {
  Graph &graph = context.graph;
  if (waves.nWaves == 1) {
    context.program.add(body);
    return;
  }
  const Tensor before = context.once("before_first_wave", [&] {
    const Tensor t = graph.addConstant(UNSIGNED_INT, {}, std::numeric_limits<unsigned>::max(),
                                       {context.dc, "before_first_wave"});
    graph.setTileMapping(t, 0);
    return t;
  });
  const Tensor more = context.once("more_waves", [&] {
    const Tensor t = graph.addVariable(BOOL, {}, {context.dc, "more_waves"});
    graph.setTileMapping(t, 0);
    return t;
  });
  const ComputeSet cs = context.cache.lockstep->addComputeSet(graph, {context.dc, steps::nextWave});
  addVertex(graph, cs, "sparq::NextWave", 0,
            {{"longest", longestRow(context, waves)}, {"wave", wave.counter}, {"more", more}},
            {{"stride", waves.stride}}, cycles::nextWave());
  context.copy(before, wave.counter, {context.dc, "first_wave"});
  Sequence next({Execute(cs, {context.dc, steps::nextWave})}, {context.dc, steps::nextWave});
  const Tensor any = context.within(next).greatest(more);
  context.program.add(RepeatWhileTrue(next, any, body, {context.dc, "waves"}));
}

void addIfAny(Graph &graph, const Cache &cache, const Tensor &flags, const Sequence &body,
              Sequence &program, const DebugContext &dc) {
  const unsigned n = static_cast<unsigned>(flags.numElements());
  const Tensor any = graph.addVariable(BOOL, {}, {dc, "any"});
  graph.setTileMapping(any, 0);
  const ComputeSet test = cache.lockstep->addComputeSet(graph, {dc, "any"});
  addVertex(graph, test, "sparq::AnyFull", 0, {{"full", flags}, {"any", any}}, {{"nSlots", n}},
            cycles::anyFull(n));
  program.add(Execute(test, {dc, "any"}));
  const Tensor ofIpus = cache.lockstep->greatest(graph, any, program, dc);
  program.add(If(ofIpus, body, Sequence(), dc));
}

} // namespace sparq
