// SPDX-License-Identifier: Apache-2.0
#include "index.hpp"
#include "codelets/cache.cycles.hpp"

namespace sparq {

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
              cycles::appendTail(own.n()), "filled"_f = step.cache.filled[task],
              "active"_f = step.active[task], "key"_f = own.of(step.keys[task]),
              "tail"_f = own.of(tail()[task]), "nComponents"_f = own.n(),
              "width"_f = layout.tailWidth());
  }
}

Tensor Index::addQuantise(const Append &step, const Tensor &blockFull, Sequence &program) const {
  const Placement &p = step.cache.plan.placement;
  const CacheLayout &layout = step.cache.layout();
  const Tensor &filled = step.cache.filled;
  const Tensor full =
      addSliced(step.graph, p, UNSIGNED_INT, p.nTasks, 1, 1, 1, {step.dc, "chunk_full"})
          .reshape({p.nTasks});
  const ComputeSet cs = step.within(program).execute("quantise_tail");
  for (unsigned task = 0; task != p.nTasks; ++task) {
    const unsigned slot = task % p.slots;
    for (unsigned slice = 0; slice != layout.nTailSlices(); ++slice) {
      const TailSlice own(layout, slice);
      addVertex(step.graph, cs, "sparq::QuantiseTail", p.tile(slot, slice),
                cycles::quantiseTail(own.n()), "filled"_f = filled[task],
                "full"_f = blockFull[task], "tail"_f = own.of(tail()[task]),
                "tailIndex"_f = own.of(records()[task]), "nComponents"_f = own.n(),
                "indexBits"_f = layout.indexBits,
                "columnWords"_f = static_cast<unsigned>(layout.columnElements(layout.chunk)),
                "chunk"_f = layout.chunk);
    }
    addVertex(step.graph, cs, "sparq::ChunkFull", p.home(slot), cycles::chunkFull(),
              "filled"_f = filled[task], "blockFull"_f = blockFull[task], "full"_f = full[task],
              "chunk"_f = layout.chunk);
  }
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
