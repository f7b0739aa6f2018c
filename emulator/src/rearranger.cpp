// SPDX-License-Identifier: Apache-2.0
// Orders of a tensor's elements that make it simpler.
#include <poplar/Graph.hpp>
#include <poplar/TensorRearranger.hpp>

#include "core.hpp"

namespace poplar {

namespace {

Tensor inOrder(const Tensor &t, const std::vector<Interval> &order, const char *op) {
  const Tensor flat = t.flatten();
  const std::size_t n = order.empty() ? 0 : [&] {
    std::size_t sum = 0;
    for (const Interval &i : order)
      sum += i.size();
    return sum;
  }();
  if (flat.numElements() != n)
    throw errors::bad_argument(std::string(op) + ": the tensor must have " + std::to_string(n) +
                               " elements, got " + std::to_string(flat.numElements()));
  return concat(flat.slices(ArrayRef<Interval>(order)));
}

// Where intervals of the source lie once `order` has moved them.
std::vector<Interval> moved(ArrayRef<Interval> is, const std::vector<Interval> &order) {
  std::vector<Interval> r;
  for (const Interval &i : is) {
    std::size_t at = 0;
    for (const Interval &o : order) {
      const std::size_t begin = std::max(i.begin(), o.begin()), end = std::min(i.end(), o.end());
      if (begin < end)
        r.push_back({at + begin - o.begin(), at + end - o.begin()});
      at += o.size();
    }
  }
  return r;
}

} // namespace

Tensor TensorRearranger::rearrange(const Tensor &t) const {
  return inOrder(t, order_, "rearrange");
}
Tensor TensorRearranger::undoRearrangement(const Tensor &t) const {
  return inOrder(t, inverse_, "undoRearrangement");
}
std::vector<Interval> TensorRearranger::rearrange(ArrayRef<Interval> is) const {
  return moved(is, order_);
}
std::vector<Interval> TensorRearranger::undoRearrangement(ArrayRef<Interval> is) const {
  return moved(is, inverse_);
}

TensorRearranger Graph::getSimplifyingRearranger(const Tensor &t) const {
  TensorRearranger r;
  const Tensor flat = t.flatten();
  for (const auto &list : getSortedContiguousRegions(flat, {{0, flat.numElements()}}))
    r.order_.insert(r.order_.end(), list.begin(), list.end());
  // The parts of the rearranged tensor, by their place in the first one.
  std::vector<std::pair<std::size_t, Interval>> parts;
  std::size_t at = 0;
  for (const Interval &i : r.order_) {
    parts.push_back({i.begin(), {at, at + i.size()}});
    at += i.size();
  }
  std::sort(parts.begin(), parts.end());
  for (const auto &p : parts)
    r.inverse_.push_back(p.second);
  return r;
}

Tensor Graph::findUnbroadcastTensor(const Tensor &t) const {
  const core::TensorImpl &i = core::Access::impl(t);
  Tensor r = t;
  for (unsigned d = 0; d < i.shape.size(); ++d)
    if (i.strides[d] == 0 && i.shape[d] > 1)
      r = r.slice(0, 1, d);
  return r;
}

unsigned Graph::convertTopLevelGraphTileToTile(unsigned tile) const {
  for (unsigned i = 0; i < tiles.size(); ++i)
    if (tiles[i] == tile)
      return i;
  if (!tiles.empty())
    throw errors::bad_mapping("convertTopLevelGraphTileToTile: tile must be one of the virtual "
                              "graph's, got " +
                              std::to_string(tile));
  return toPhysicalTile(tile, "convertTopLevelGraphTileToTile");
}
// Tiles have one number here: virtual and physical tiles of a device are the same.
unsigned Graph::convertPhysicalTileToVirtualTile(unsigned tile) const {
  return convertTopLevelGraphTileToTile(tile);
}
unsigned Graph::convertPhysicalTileToVirtualTile(unsigned ipuId, unsigned tile) const {
  return convertTopLevelGraphTileToTile(ipuId * impl->device.getTilesPerIPU() + tile);
}

} // namespace poplar
