// SPDX-License-Identifier: Apache-2.0
//
// The KV cache that the operators of one cache_name share while a model is lowered to Poplar.
#pragma once

#include "cache_op.hpp"
#include "sparq/cache.hpp"
#include <memory>

namespace sparq_popart {

class LayerCache {
public:
  // The one of this name on this device: made by the first Opx that asks, gone with the last, so
  // that the next model lowered starts from nothing.
  static std::shared_ptr<LayerCache> find(const popart::popx::Devicex *device,
                                          const std::string &name);

  // Allocated, for what all of the model's operators on it need, when it is first asked for. Throws
  // sparq::Error where the operators are not all on one IPU.
  const sparq::Cache &get(const popart::popx::Opx &opx);
  // Which of the programs that the cache was planned for this is.
  std::size_t index(const sparq::Attention &attention) const;

private:
  void create(poplar::Graph &graph, const CacheOp &op);

  bool created_ = false;
  std::int64_t virtualGraph_ = 0;
  sparq::Programs programs_;
  sparq::Cache cache_;
};

// An operator's lowering: finds its cache, and adds the codelets before any vertex is.
class CacheOpx : public popart::popx::Opx {
public:
  CacheOpx(popart::Op *op, popart::popx::Devicex *device);

protected:
  LayerCache &layer() const { return *layer_; }
  const sparq::Cache &cache() const { return layer_->get(*this); }

private:
  std::shared_ptr<LayerCache> layer_;
};

} // namespace sparq_popart
