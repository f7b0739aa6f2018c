// SPDX-License-Identifier: Apache-2.0
#include "sparq/cache.hpp"
#include "codelets/cache_append.cycles.hpp"
#include "layer_moves.hpp"
#include "stores/store.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

// The number of the layer that is being worked on.
void addLayerNumber(Graph &graph, Cache &cache) {
  const Placement &p = cache.plan.placement;
  if (cache.layout().nLayers != 1) {
    cache.layerNumber = graph.addVariable(UNSIGNED_INT, {}, {cache.name + "/layer_number"});
    graph.setTileMapping(cache.layerNumber, 0);
    if (cache.lockstep->nIpus() != 1) // programs for another IPU load and store some layer here too
      graph.setInitialValue(cache.layerNumber, 0u);
    cache.layer = addPerPart(graph, p, UNSIGNED_INT, p.parts, {}, {cache.name + "/layer"});
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

std::string Cache::refusal() const {
  for (const auto &store : stores)
    if (const std::string refused = store->refusal(*this); !refused.empty())
      return refused;
  return {};
}

void checkGrows(const char *op, const Cache &cache) {
  if (const std::string refused = cache.refusal(); !refused.empty())
    throw Error(std::string(op) + ": cache must hold one position a row, got " + refused);
}

// {nTasks} from {batch}: every KV head of an element is active with it. Copied, so that each slot
// has its own on its home tile.
static Tensor activePerTask(Graph &graph, const Cache &cache, const Tensor &active,
                            Sequence &program, const DebugContext &dc) {
  const Shape &shape = cache.plan.shape;
  const Tensor perTask =
      addSliced(graph, cache.plan.placement, UNSIGNED_INT, shape.nTasks(), 1, 1, 1, {dc, "active"})
          .reshape({shape.nTasks()});
  cache.lockstep->copy(active.expand({1}).broadcast(shape.nKvHeads, 1).flatten(), perTask, program,
                       {dc, "active"});
  return perTask;
}

void append(Graph &graph, const Cache &cache, const Tensor &key, const Tensor &value,
            const Tensor &active, Sequence &program, const DebugContext &dc) {
  const Shape &shape = cache.plan.shape;
  const Placement &p = cache.plan.placement;
  const unsigned nTasks = shape.nTasks(), d = shape.headDim;
  checkTensor("append", "key", key, HALF, {shape.batch, shape.nKvHeads, d});
  checkTensor("append", "value", value, HALF, {shape.batch, shape.nKvHeads, d});
  checkTensor("append", "active", active, UNSIGNED_INT, {shape.batch});
  checkGrows("append", cache);
  Append step{{graph, cache, program, dc},
              activePerTask(graph, cache, active, program, dc),
              key.reshape({nTasks, d}),
              value.reshape({nTasks, d})};
  for (const auto &store : cache.stores)
    store->append(step);
  const Tensor full =
      addSliced(graph, p, UNSIGNED_INT, nTasks, 1, 1, 1, {dc, "full"}).reshape({nTasks});
  unsigned unit = 1;
  for (const auto &store : cache.stores)
    unit = std::max(unit, store->unit(cache.layout()));
  const ComputeSet beside = cache.lockstep->addComputeSet(graph, {dc, "append_tail"}),
                   advance = cache.lockstep->addComputeSet(graph, {dc, "advance"});
  for (unsigned task = 0; task != nTasks; ++task) {
    for (const auto &store : cache.stores)
      store->addAppend(step, beside, task);
    addVertex(graph, advance, "sparq::AdvanceLength", p.home(task % p.slots),
              {{"filled", cache.filled[task]}, {"active", step.active[task]}, {"full", full[task]}},
              {{"chunk", unit}}, cycles::advanceLength());
  }
  program.add(Execute(beside, {dc, "append_tail"}));
  for (const auto &store : cache.stores)
    store->appendNewest(step);
  program.add(Execute(advance, {dc, "advance"}));
  for (const auto &store : cache.stores)
    store->appended(step, full);
}

} // namespace sparq
