// SPDX-License-Identifier: Apache-2.0
#include "context.hpp"
#include "codelets/cache.cycles.hpp"
#include "sparq/kernels.hpp"
#include "sparq/step_names.hpp"
#include <limits>

namespace sparq {

Tensor addOnTile(Graph &graph, unsigned tile, const Type &type,
                 const std::vector<std::size_t> &shape, const DebugContext &dc) {
  const Tensor tensor = graph.addVariable(type, shape, dc);
  graph.setTileMapping(tensor, tile);
  return tensor;
}

Tensor addOnParts(Graph &graph, const Placement &placement, const Type &type, unsigned nOuter,
                  unsigned n, const std::vector<std::size_t> &shape, const DebugContext &dc,
                  const PartOf &partOf) {
  std::vector<std::size_t> full{nOuter, n};
  std::size_t each = 1;
  for (const std::size_t extent : shape) {
    full.push_back(extent);
    each *= extent;
  }
  const Tensor tensor = graph.addVariable(type, full, dc);
  Graph::TileToTensorMapping mapping(graph.getTarget().getNumTiles());
  for (unsigned outer = 0; outer != nOuter; ++outer)
    for (unsigned i = 0; i != n; ++i) {
      const std::size_t begin = (std::size_t(outer) * n + i) * each;
      const unsigned part = (partOf ? partOf(i) : i) % placement.parts;
      mapping[placement.tile(outer % placement.slots, part)].emplace_back(begin, begin + each);
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
                 std::size_t extent, std::size_t piece, std::size_t inner, const DebugContext &dc,
                 unsigned firstPart) {
  const Tensor tensor = graph.addVariable(type, {nOuter, extent, inner}, dc);
  Graph::TileToTensorMapping mapping(graph.getTarget().getNumTiles());
  for (unsigned outer = 0; outer != nOuter; ++outer)
    for (std::size_t begin = 0, part = firstPart; begin < extent; begin += piece, ++part) {
      const std::size_t end = std::min(begin + piece, extent), base = outer * extent;
      const unsigned tile =
          placement.tile(outer % placement.slots, static_cast<unsigned>(part % placement.parts));
      mapping[tile].emplace_back((base + begin) * inner, (base + end) * inner);
    }
  graph.setTileMapping(tensor, mapping);
  return tensor;
}

Tensor Steps::perTask(const char *name) const {
  const unsigned n = placement().nTasks;
  return addSliced(graph, placement(), UNSIGNED_INT, n, 1, 1, 1, {dc, name}).reshape({n});
}

Tensor Context::onParts(const Type &type, unsigned n, const std::vector<std::size_t> &shape,
                        const std::string &name, const PartOf &partOf) const {
  return once(name, [&] {
    return addOnParts(graph, placement(), type, placement().slots, n, shape, {dc, name}, partOf);
  });
}

WaveIndex Context::waveIndex(unsigned nWaves) const {
  WaveIndex wave;
  if (nWaves == 1)
    wave.zero =
        once("only_wave", [&] { return addZeroPerPart(graph, placement(), {dc, "only_wave"}); });
  else
    wave.counter = onTile(0, UNSIGNED_INT, {}, "wave");
  return wave;
}

Tensor Context::sliced(const Type &type, std::size_t extent, std::size_t piece, std::size_t inner,
                       const char *name, unsigned firstPart) const {
  return once(name, [&] {
    return addSliced(graph, placement(), type, placement().slots, extent, piece, inner, {dc, name},
                     firstPart);
  });
}

const Type &columnType(const CacheLayout &layout) {
  return layout.quantised() ? UNSIGNED_INT : HALF;
}

Tensor createOutput(Graph &graph, const Cache &cache, const DebugContext &dc) {
  const Shape &shape = cache.plan.shape;
  const Placement &p = cache.plan.placement;
  const std::size_t d = shape.headDim, g = shape.groupSize(), nTasks = shape.nTasks();
  const std::vector<PlannedAttention> &all = cache.plan.attention;
  // In SRAM pieces of a head, else of all heads of a group.
  const bool inSram = !all.empty() && all.front().kernel->memory == Memory::sram;
  const std::size_t piece = inSram ? 2 : 8, n = d / piece;
  const Tensor output =
      inSram ? addSliced(graph, p, HALF, nTasks, n * g, (n * g + p.parts - 1) / p.parts, piece, dc)
             : addSliced(graph, p, HALF, nTasks, n, p.width / piece, g * piece, dc);
  return output.reshape({nTasks, n, g, piece}).dimShuffle({0, 2, 1, 3}).reshape({nTasks, g, d});
}

// {6} UNSIGNED_INT on tile 0: positions of the round's longest row in full chunks, found once, by
// the first loop of the round.
static Tensor longestRow(const Context &context, const Waves &waves) {
  return context.once("longest_row_" + std::to_string(context.round), [&] {
    const unsigned nSlots = context.nSlots(), first = context.task(0);
    const Tensor t =
        addOnTile(context.graph, 0, UNSIGNED_INT, {cycles::nWorkers}, {context.dc, "longest_row"});
    addVertex(context.graph, context.execute("longest_row"), "sparq::LongestRow", 0,
              cycles::longestRow(nSlots),
              "filled"_f = context.cache.filled.slice(first, first + nSlots, 0), "longest"_f = t,
              "nSlots"_f = nSlots, "chunk"_f = waves.chunk);
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
  const Tensor more = context.onTile(0, BOOL, {}, "more_waves");
  const ComputeSet cs = context.cache.lockstep->addComputeSet(graph, {context.dc, steps::nextWave});
  addVertex(graph, cs, "sparq::NextWave", 0, cycles::nextWave(),
            "longest"_f = longestRow(context, waves), "wave"_f = wave.counter, "more"_f = more,
            "stride"_f = waves.stride);
  context.copy(before, wave.counter, "first_wave");
  Sequence next({Execute(cs, {context.dc, steps::nextWave})}, {context.dc, steps::nextWave});
  const Tensor any = context.within(next).greatest(more);
  context.program.add(RepeatWhileTrue(next, any, body, {context.dc, "waves"}));
}

void addIfAny(const Steps &steps, const Tensor &flags, const Sequence &body, const char *name) {
  const Steps of{steps.graph, steps.cache, steps.program, {steps.dc, name}};
  const unsigned n = static_cast<unsigned>(flags.numElements());
  const Tensor any = addOnTile(of.graph, 0, BOOL, {}, {of.dc, "any"});
  addVertex(of.graph, of.execute("any"), "sparq::AnyFull", 0, cycles::anyFull(n), "full"_f = flags,
            "any"_f = any, "nSlots"_f = n);
  const Tensor ofIpus = of.cache.lockstep->greatest(of.graph, any, of.program, of.dc);
  of.program.add(If(ofIpus, body, Sequence(), of.dc));
}

} // namespace sparq
