// SPDX-License-Identifier: Apache-2.0
//
// A key index in planes of bits (docs/exactness.md E12). Streaming memory has a row for each plane of a component of a
// chunk, and one for the steps and the lowest values of its blocks. The tail is that of key records.
#pragma once

#include "index.hpp"

namespace sparq {

class KeyPlanes final : public Index {
public:
  KeyPlanes(poplar::Graph &graph, const Cache &cache, bool hostWrites);

  std::uint64_t streamingBytes(const poplar::Target &target) const override;
  std::vector<Layered> layered() const override;
  void appended(const Append &step, const poplar::Tensor &full) const override;
  std::unique_ptr<HostStore> host(poplar::Graph &graph, const Cache &cache) const override;

  // index_planes.cpp
  void selectComponents(const Context &context, const SparqSettings &settings,
                        const QueryComponents &q) const override;
  void score(const Context &context, const SparqSettings &settings, const Waves &waves,
             const QueryComponents &q, const Scores &scores) const override;

  // {nTasks, headDim} FLOAT: the largest step of each component's full blocks, 0 before the first.
  poplar::Tensor widest() const { return widest_.state.squeeze({2}); }

private:
  poplar::program::Sequence flush(const Append &step, const poplar::Tensor &full) const;

  Layered widest_;
  poplar::RemoteBuffer planes_, steps_;
};

// Rows of a buffer, of which each component of a chunk has `ofComponent`: numbered task by task as key columns are,
// behind them as many scratch rows for each slot.
struct PlaneRows {
  const CacheLayout &layout;
  unsigned ofComponent;

  unsigned ofTask() const { return layout.headDim * ofComponent; } // of one chunk
  std::size_t row(unsigned task, unsigned i, unsigned chunk) const {
    return (std::size_t(task) * ofTask() + i) * layout.nChunks() + chunk;
  }
  std::size_t scratch(unsigned slot) const {
    return row(layout.nTasks, 0, 0) + std::size_t(slot) * ofTask();
  }
  unsigned ofLayer(const Cache &cache) const {
    return static_cast<unsigned>(scratch(cache.plan.placement.slots));
  }
};

} // namespace sparq
