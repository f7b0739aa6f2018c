// SPDX-License-Identifier: Apache-2.0
#include "rows.hpp"
#include "codelets/cache.cycles.hpp"

namespace sparq {

RemoteRowStore::RemoteRowStore(Graph &graph, const Cache &cache, bool hostWrites)
    : buffer_(addBuffer(graph, cache, "rows", HALF, cache.layout().rowElements,
                        cache.layout().nLayers * cache.layout().layerRows(), hostWrites)) {}

std::uint64_t RemoteRowStore::streamingBytes(const Target &target) const {
  return bytesOf(buffer_, target);
}

Tensor RemoteRowStore::addAppendOffsets(const Append &step) const {
  const Cache &cache = step.cache;
  const Placement &p = cache.plan.placement;
  const CacheLayout &layout = cache.layout();
  const Tensor rows =
      addSliced(step.graph, p, UNSIGNED_INT, p.nTasks, 1, 1, 2, {step.dc, "append_rows"})
          .squeeze({1});
  const ComputeSet cs = step.execute("append_offsets");
  for (unsigned task = 0; task != p.nTasks; ++task)
    addVertex(step.graph, cs, "sparq::AppendOffsets", p.home(task % p.slots),
              cycles::appendOffsets(), "filled"_f = cache.filled[task],
              "active"_f = step.active[task], "layer"_f = cache.layer[task % p.slots][0],
              "rows"_f = rows[task], "rowBase"_f = static_cast<unsigned>(layout.keyRow(task, 0)),
              "layerRows"_f = cache.layerRows(),
              "scratchRow"_f = static_cast<unsigned>(layout.scratchRow(task)),
              "valueRow"_f = static_cast<unsigned>(layout.valueRow()));
  return rows;
}

RemoteRows RemoteRowStore::hostRows(Graph &graph, const Cache &cache) const {
  return {graph, buffer_, cache.layout().nLayers * cache.layout().layerRows(),
          cache.name + "/rows"};
}

Tensor RemoteRowStore::fillRows(FillStep &step, const char *name) {
  const Placement &p = step.placement();
  return onceIn(step.variables, name, [&] {
    return addSliced(step.graph, p, UNSIGNED_INT, p.slots, step.length,
                     ceilDiv(step.length, p.parts), 1, {step.dc, "fill_rows"})
        .squeeze({2});
  });
}

} // namespace sparq
