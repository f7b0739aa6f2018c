// SPDX-License-Identifier: Apache-2.0
#include "index.hpp"
#include "codelets/cache_append.cycles.hpp"
#include "codelets/quantise.cycles.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

Index::Index(Graph &graph, const Cache &cache) {
  const CacheLayout &layout = cache.layout();
  const unsigned d = layout.indexDim, n = layout.tailComponents;
  tail_ = addLayered(graph, cache, HALF, d, n, layout.tailWidth(), "tail");
  if (!layout.quantised())
    return;
  const Layered records = addLayered(graph, cache, columnType(layout), d, n,
                                     layout.columnElements(layout.chunk), "tail_index");
  tail_.words = records.state;
  tail_.storedWords = records.stored;
}

void Index::addAppend(const Append &step, const ComputeSet &cs, unsigned task) const {
  const CacheLayout &layout = step.cache.layout();
  const Placement &p = step.cache.plan.placement;
  for (unsigned slice = 0; slice != layout.nTailSlices(); ++slice) {
    const TailSlice own(layout, slice);
    addVertex(step.graph, cs, "sparq::AppendTail", p.tile(task % p.slots, slice),
              {{"filled", step.cache.filled[task]},
               {"active", step.active[task]},
               {"key", own.of(step.keys[task])},
               {"tail", own.of(tail()[task]).flatten()}},
              {{"nComponents", own.n()}, {"width", layout.tailWidth()}},
              cycles::appendTail(own.n()));
  }
}

Tensor Index::addQuantise(const Append &step, const Tensor &blockFull, Sequence &program) const {
  const Placement &p = step.cache.plan.placement;
  const CacheLayout &layout = step.cache.layout();
  const Tensor &filled = step.cache.filled;
  const Tensor full =
      addSliced(step.graph, p, UNSIGNED_INT, p.nTasks, 1, 1, 1, {step.dc, "chunk_full"})
          .reshape({p.nTasks});
  const ComputeSet cs = step.cache.lockstep->addComputeSet(step.graph, {step.dc, "quantise_tail"});
  for (unsigned task = 0; task != p.nTasks; ++task) {
    const unsigned slot = task % p.slots;
    for (unsigned slice = 0; slice != layout.nTailSlices(); ++slice) {
      const TailSlice own(layout, slice);
      addVertex(step.graph, cs, "sparq::QuantiseTail", p.tile(slot, slice),
                {{"filled", filled[task]},
                 {"full", blockFull[task]},
                 {"tail", own.of(tail()[task]).flatten()},
                 {"tailIndex", own.of(records()[task]).flatten()}},
                {{"nComponents", own.n()},
                 {"indexBits", layout.indexBits},
                 {"columnWords", static_cast<unsigned>(layout.columnElements(layout.chunk))},
                 {"chunk", layout.chunk}},
                cycles::quantiseTail(own.n()));
    }
    addVertex(step.graph, cs, "sparq::ChunkFull", p.home(slot),
              {{"filled", filled[task]}, {"blockFull", blockFull[task]}, {"full", full[task]}},
              {{"chunk", layout.chunk}}, cycles::chunkFull());
  }
  program.add(Execute(cs, {step.dc, "quantise_tail"}));
  return full;
}

// The last parts have the tail: the waves fill up the first ones.
void IndexKind::arrange(const Request &, Plan &plan) const {
  CacheLayout &layout = plan.layout;
  layout.tailLength = partLength(layout.chunk, plan.placement.parts);
  layout.tailFirst = plan.placement.parts - layout.nTailParts();
  layout.tailComponents = roundUp(ceilDiv(layout.indexDim, plan.placement.parts), 4);
}

TileNeed IndexKind::need(const Plan &plan) const {
  return {plan.layout.tailBytes() * plan.placement.nRounds * plan.layout.nCopies(), 0};
}

HostTail::HostTail(Graph &graph, const Cache &cache, const Index &index)
    : columns_(HostTensor::writable(graph, index.tail(), cache.name + "/tail")) {
  if (index.records().valid())
    records_ = HostTensor::writable(graph, index.records(), cache.name + "/tail_index");
}

void HostTail::write(Engine &engine, const Values &tail) const {
  columns_.write(engine, tail.columns.data());
  records_.write(engine, tail.records.data());
}

} // namespace sparq
