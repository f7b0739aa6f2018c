// SPDX-License-Identifier: Apache-2.0
#include "rows.hpp"
#include <algorithm>
#include <array>

namespace sparq {

using namespace poplar;

namespace {

Tensor addPositions(Graph &graph, const Cache &cache, const char *name) {
  const Placement &p = cache.plan.placement;
  const unsigned capacity = cache.layout().capacity;
  return addSliced(graph, p, HALF, p.nTasks, capacity, partLength(capacity, p.parts),
                   cache.layout().headDim, {cache.name + "/" + name});
}

class HostResidentRows final : public HostStore {
public:
  HostResidentRows(Graph &graph, const Cache &cache, const ResidentRows &rows)
      : layout_(cache.layout()) {
    const std::array<Tensor, 2> tensors{rows.keys, rows.values};
    const std::array<const char *, 2> names{"/keys", "/values"};
    for (std::size_t i = 0; i != tensors.size(); ++i) {
      writable_[i] = HostTensor::writable(graph, tensors[i], cache.name + names[i]);
      readable_[i] = HostTensor::readable(graph, tensors[i], cache.name + names[i]);
    }
  }

  void write(Engine &engine, HostTokens &tokens) override {
    for (const std::uint32_t length : tokens.held)
      if (length != 0)
        throw Error("append: a cache in SRAM must be empty, got length " + std::to_string(length));
    std::vector<std::uint16_t> rows(layout_.nTasks * room());
    for (std::size_t i = 0; i != writable_.size(); ++i) {
      for (unsigned task = 0; task != layout_.nTasks; ++task)
        std::copy_n((i == 0 ? tokens.keys : tokens.values) + tokens.at(task, 0),
                    std::size_t(tokens.countOf(task)) * layout_.headDim,
                    rows.begin() + task * room());
      writable_[i].write(engine, rows.data());
    }
  }

  void read(Engine &engine, unsigned, const std::vector<HostRange> &ranges) const override {
    const std::size_t d = layout_.headDim;
    std::vector<std::uint16_t> rows(layout_.nTasks * room());
    for (std::size_t i = 0; i != readable_.size(); ++i) {
      readable_[i].read(engine, rows.data());
      for (const HostRange &range : ranges)
        std::copy_n(rows.begin() + range.task * room() + range.begin * d,
                    (range.end - range.begin) * d, i == 0 ? range.key : range.value);
    }
  }

private:
  std::size_t room() const { return std::size_t(layout_.capacity) * layout_.headDim; }

  CacheLayout layout_;
  std::array<HostTensor, 2> writable_, readable_; // keys, values
};

class ResidentRowsKind : public StoreKind {
public:
  void check(const Request &request) const override {
    if (request.programs.nLayers != 1)
      throw Error("plan: n_layers must be 1 where keys and values are in SRAM, got " +
                  std::to_string(request.programs.nLayers));
  }
  void layOut(const Request &request, CacheLayout &layout) const override {
    SplitRows::layOut(request, layout);
  }
  TileNeed need(const Plan &plan) const override {
    return {0, std::uint64_t(partLength(plan.layout.capacity, plan.placement.parts)) *
                   plan.shape.headDim * 4 * plan.placement.nRounds};
  }
};

const KindOf<ResidentRows, ResidentRowsKind> residentRowsKind;

} // namespace

const StoreKind &residentRows = residentRowsKind;

ResidentRows::ResidentRows(Graph &graph, const Cache &cache, bool)
    : keys(addPositions(graph, cache, "keys")), values(addPositions(graph, cache, "values")) {}

std::unique_ptr<HostStore> ResidentRows::host(Graph &graph, const Cache &cache) const {
  return std::make_unique<HostResidentRows>(graph, cache, *this);
}

} // namespace sparq
