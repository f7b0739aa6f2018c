// SPDX-License-Identifier: Apache-2.0
#include "sparq/cache.hpp"
#include "codelets/cache.cycles.hpp"
#include "stores/store.hpp"

namespace sparq {

namespace {

// The number of the layer that is being worked on.
void addLayerNumber(Graph &graph, Cache &cache) {
  const Placement &p = cache.plan.placement;
  if (cache.layout().nLayers != 1) {
    cache.layerNumber = addOnTile(graph, 0, UNSIGNED_INT, {}, {cache.name + "/layer_number"});
    if (cache.lockstep->nIpus() != 1) // programs for another IPU load and store some layer here too
      graph.setInitialValue(cache.layerNumber, 0u);
    cache.layer = addOnParts(graph, p, UNSIGNED_INT, p.slots, p.parts, {}, {cache.name + "/layer"});
    return;
  }
  cache.layer = addZeroPerPart(graph, p, {cache.name + "/layer"});
}

} // namespace

Cache createCache(Graph &graph, const Plan &plan, const std::string &name, bool hostWrites,
                  std::shared_ptr<Lockstep> lockstep) {
  Cache cache;
  if (lockstep)
    cache.lockstep = std::move(lockstep);
  cache.name = name;
  cache.plan = plan;
  addLayerNumber(graph, cache);
  const Layered filled = addLayered(graph, cache, UNSIGNED_INT, 1, 1, 1, "filled");
  cache.filled = filled.state.reshape({plan.placement.nTasks});
  cache.storedFilled = filled.stored;
  for (const StoreKind *const kind : plan.stores)
    cache.stores.push_back(kind->make(graph, cache, hostWrites));
  if (plan.layout.nLayers != 1)
    addLayerFunctions(graph, cache);
  return cache;
}

std::uint64_t Cache::streamingBytes(const Target &target) const {
  std::uint64_t bytes = 0;
  for (const auto &store : stores)
    bytes += store->streamingBytes(target);
  return bytes;
}

void checkGrows(const char *op, const Cache &cache) {
  if (!cache.grows())
    throw Error(std::string(op) + ": cache must hold one position a row, got " +
                std::to_string(cache.layout().positionsPerRow));
}

void append(Graph &graph, const Cache &cache, const Tensor &key, const Tensor &value,
            const Tensor &active, Sequence &program, const DebugContext &dc) {
  const Shape &shape = cache.plan.shape;
  const Placement &p = cache.plan.placement;
  const unsigned nTasks = shape.nTasks(), d = shape.headDim;
  checkGrows("append", cache);
  const Steps steps{graph, cache, program, dc};
  Append step{steps, steps.perTask("active"), key.reshape({nTasks, d}), value.reshape({nTasks, d})};
  // Every KV head of an element is active with it. Copied, so that each slot has its own.
  step.copy(active.expand({1}).broadcast(shape.nKvHeads, 1).flatten(), step.active, "active");
  for (const auto &store : cache.stores)
    store->append(step);
  const Tensor full = step.perTask("full");
  unsigned unit = 1;
  for (const auto &store : cache.stores)
    unit = std::max(unit, store->unit(cache.layout()));
  const ComputeSet beside = step.execute("append_tail");
  for (unsigned task = 0; task != nTasks; ++task)
    for (const auto &store : cache.stores)
      store->addAppend(step, beside, task);
  for (const auto &store : cache.stores)
    store->appendNewest(step);
  const ComputeSet advance = step.execute("advance");
  for (unsigned task = 0; task != nTasks; ++task)
    addVertex(graph, advance, "sparq::AdvanceLength", p.home(task % p.slots),
              cycles::advanceLength(), "filled"_f = cache.filled[task],
              "active"_f = step.active[task], "full"_f = full[task], "chunk"_f = unit);
  for (const auto &store : cache.stores)
    store->appended(step, full);
}

} // namespace sparq
