// SPDX-License-Identifier: Apache-2.0
#include "layer_cache.hpp"
#include "sparq/cache_fill.hpp"
#include <algorithm>
#include <map>
#include <mutex>

namespace sparq_popart {

std::shared_ptr<LayerCache> LayerCache::find(const popart::popx::Devicex *device,
                                             const std::string &name) {
  // The Opx own the caches: an entry whose device is gone has expired, even if another device now
  // has its address.
  static std::map<std::pair<const void *, std::string>, std::weak_ptr<LayerCache>> all;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  for (auto entry = all.begin(); entry != all.end();)
    entry = entry->second.expired() ? all.erase(entry) : std::next(entry);
  std::weak_ptr<LayerCache> &entry = all[{device, name}];
  std::shared_ptr<LayerCache> layer = entry.lock();
  if (layer == nullptr)
    entry = layer = std::make_shared<LayerCache>();
  return layer;
}

const sparq::Cache &LayerCache::get(const popart::popx::Opx &opx) {
  const CacheOp &op = opx.getOp<CacheOp>();
  if (!created_) {
    create(opx.graph(), op);
    virtualGraph_ = opx.getVirtualGraphId();
    created_ = true;
  }
  if (opx.getVirtualGraphId() != virtualGraph_)
    throw sparq::Error(op.opid.type + ": virtual graph must be " + std::to_string(virtualGraph_) +
                       " as in the other operators of cache '" + op.cacheName() + "', got " +
                       std::to_string(opx.getVirtualGraphId()));
  return cache_;
}

std::size_t LayerCache::index(const sparq::Attention &attention) const {
  const std::vector<sparq::Attention> &all = programs_.attention;
  return static_cast<std::size_t>(std::find(all.begin(), all.end(), attention) - all.begin());
}

void LayerCache::create(poplar::Graph &graph, const CacheOp &op) {
  sparq::Shape shape = op.shape();
  for (const CacheOp *const other : op.ofCache()) {
    other->require(programs_);
    shape.nHeads = std::max(shape.nHeads, other->shape().nHeads);
  }
  if (shape.nHeads == 0) // filled and never read
    shape.nHeads = shape.nKvHeads;
  const sparq::Plan plan = sparq::makePlan(graph.getTarget(), shape, programs_);
  const bool hostWrites = false; // only operators do
  cache_ = sparq::createCache(graph, plan, "sparq/" + op.cacheName(), hostWrites);
  sparq::initialiseCache(graph, cache_);
}

CacheOpx::CacheOpx(popart::Op *op, popart::popx::Devicex *device)
    : popart::popx::Opx(op, device),
      layer_(LayerCache::find(device, getOp<CacheOp>().cacheName())) {
  sparq::addCodelets(graph());
}

} // namespace sparq_popart
