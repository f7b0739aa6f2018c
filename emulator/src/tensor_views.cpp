// SPDX-License-Identifier: Apache-2.0
// Operations that make a view of a view.
#include <poplar/Tensor.hpp>

#include "core.hpp"
#include "regions.hpp"

namespace poplar {

using core::Access;
using core::TensorImpl;

Tensor Tensor::operator[](std::size_t i) const & {
  const TensorImpl &t = Access::impl(*this);
  core::checkDim("operator[]", t, 0);
  if (i >= t.shape[0])
    throw errors::index_out_of_range("operator[]: index must be below " +
                                     std::to_string(t.shape[0]) + " (shape " +
                                     core::shapeString(t.shape) + "), got " + std::to_string(i));
  TensorImpl r = t;
  r.offset += static_cast<std::int64_t>(i) * t.strides[0];
  r.shape.erase(r.shape.begin());
  r.strides.erase(r.strides.begin());
  return Access::makeTensor(std::move(r));
}

Tensor Tensor::slice(std::size_t begin, std::size_t end, unsigned dimension) const {
  const TensorImpl &t = Access::impl(*this);
  core::checkDim("slice", t, dimension);
  if (begin > end || end > t.shape[dimension])
    throw errors::index_out_of_range(
        "slice: [begin, end) must be within [0, " + std::to_string(t.shape[dimension]) +
        ") of dimension " + std::to_string(dimension) + " of shape " + core::shapeString(t.shape) +
        ", got [" + std::to_string(begin) + ", " + std::to_string(end) + ")");
  TensorImpl r = t;
  r.offset += static_cast<std::int64_t>(begin) * t.strides[dimension];
  r.shape[dimension] = end - begin;
  return Access::makeTensor(std::move(r));
}

Tensor Tensor::slice(ArrayRef<std::size_t> begin, ArrayRef<std::size_t> end) const {
  const TensorImpl &t = Access::impl(*this);
  if (begin.size() != end.size() || begin.size() > t.shape.size())
    throw errors::index_out_of_range(
        "slice: begin and end must have one length of at most the rank " +
        std::to_string(t.shape.size()) + ", got " + std::to_string(begin.size()) + " and " +
        std::to_string(end.size()));
  Tensor r = *this;
  for (std::size_t i = 0; i < begin.size(); ++i)
    r = r.slice(begin[i], end[i], static_cast<unsigned>(i));
  return r;
}

std::vector<Tensor> Tensor::slices(ArrayRef<Interval> intervals, unsigned dimension) const {
  std::vector<Tensor> r;
  r.reserve(intervals.size());
  for (const Interval &i : intervals)
    r.push_back(slice(i, dimension));
  return r;
}

std::vector<Tensor> Tensor::slices(const std::vector<std::vector<Interval>> &intervals,
                                   unsigned dimension) const {
  std::vector<Tensor> r;
  r.reserve(intervals.size());
  // PopLibs slices all operands of a map as its output, and those of one element too: that stands
  // for all of them.
  const bool one = dimension < rank() && dim(dimension) == 1;
  for (const auto &list : intervals) {
    std::vector<Tensor> parts;
    for (const Interval &i : list)
      parts.push_back(one && i.end() > 1 ? broadcast(static_cast<unsigned>(i.size()), dimension)
                                         : slice(i, dimension));
    r.push_back(concat(parts, dimension));
  }
  return r;
}

std::vector<Tensor> Tensor::slices(const poplar::ArrayRef<unsigned> &indices,
                                   unsigned dimension) const {
  std::vector<Tensor> r;
  r.reserve(indices.size());
  for (unsigned i : indices)
    r.push_back(slice(i, std::size_t(i) + 1, dimension));
  return r;
}

Tensor Tensor::index(ArrayRef<std::size_t> indices) const {
  Tensor r = *this;
  for (std::size_t i : indices)
    r = r[i];
  return r;
}

Tensor Tensor::reshape(ArrayRef<std::size_t> shape) const {
  const TensorImpl &t = Access::impl(*this);
  std::vector<std::size_t> to(shape.begin(), shape.end());
  if (core::numElements(to) != core::numElements(t.shape))
    throw errors::view_shape("reshape: the new shape must have " +
                             std::to_string(core::numElements(t.shape)) + " elements as shape " +
                             core::shapeString(t.shape) + ", got " + core::shapeString(to));
  TensorImpl r = t;
  if (core::numElements(to) == 0) {
    r.strides.assign(to.size(), 1);
    r.shape = std::move(to);
    return Access::makeTensor(std::move(r));
  }
  if (core::reshapeStrides(t, to, r.strides)) {
    r.shape = std::move(to);
    return Access::makeTensor(std::move(r));
  }
  core::RegionList list;
  std::size_t total = 0;
  core::appendTo(list, total, t);
  return core::fromList(t, std::move(list), std::move(to));
}

Tensor Tensor::flatten() const { return reshape({numElements()}); }

Tensor Tensor::flatten(unsigned dimBegin, unsigned dimEnd) const {
  const TensorImpl &t = Access::impl(*this);
  if (dimBegin > dimEnd || dimEnd > t.shape.size())
    throw errors::index_out_of_range(
        "flatten: dimensions must be within [0, " + std::to_string(t.shape.size()) + "), got [" +
        std::to_string(dimBegin) + ", " + std::to_string(dimEnd) + ")");
  std::size_t n = 1;
  for (unsigned i = dimBegin; i < dimEnd; ++i)
    n *= t.shape[i];
  return reshapePartial(dimBegin, dimEnd, {n});
}

Tensor Tensor::reshapePartial(unsigned beginIndex, unsigned endIndex,
                              ArrayRef<std::size_t> newDims) const {
  const TensorImpl &t = Access::impl(*this);
  if (beginIndex > endIndex || endIndex > t.shape.size())
    throw errors::index_out_of_range(
        "reshapePartial: dimensions must be within [0, " + std::to_string(t.shape.size()) +
        "), got [" + std::to_string(beginIndex) + ", " + std::to_string(endIndex) + ")");
  std::vector<std::size_t> to(t.shape.begin(), t.shape.begin() + beginIndex);
  to.insert(to.end(), newDims.begin(), newDims.end());
  to.insert(to.end(), t.shape.begin() + endIndex, t.shape.end());
  return reshape(to);
}

Tensor Tensor::dimShuffle(ArrayRef<unsigned> permutation) const {
  const TensorImpl &t = Access::impl(*this);
  std::vector<bool> seen(t.shape.size(), false);
  bool ok = permutation.size() == t.shape.size();
  for (std::size_t i = 0; ok && i < permutation.size(); ++i) {
    ok = permutation[i] < t.shape.size() && !seen[permutation[i]];
    if (ok)
      seen[permutation[i]] = true;
  }
  if (!ok) {
    std::vector<std::size_t> p(permutation.begin(), permutation.end());
    throw errors::view_shape("dimShuffle: the permutation must hold each of the " +
                             std::to_string(t.shape.size()) + " dimensions once, got " +
                             core::shapeString(p));
  }
  TensorImpl r = t;
  for (std::size_t i = 0; i < permutation.size(); ++i) {
    r.shape[i] = t.shape[permutation[i]];
    r.strides[i] = t.strides[permutation[i]];
  }
  return Access::makeTensor(std::move(r));
}

Tensor Tensor::dimShufflePartial(ArrayRef<unsigned> source, ArrayRef<unsigned> destination) const {
  const TensorImpl &t = Access::impl(*this);
  if (source.size() != destination.size())
    throw errors::view_shape(
        "dimShufflePartial: source and destination must have one length, got " +
        std::to_string(source.size()) + " and " + std::to_string(destination.size()));
  const unsigned rank = static_cast<unsigned>(t.shape.size());
  std::vector<unsigned> permutation(rank, rank);
  std::vector<bool> used(rank, false);
  for (std::size_t i = 0; i < source.size(); ++i) {
    core::checkDim("dimShufflePartial", t, source[i]);
    core::checkDim("dimShufflePartial", t, destination[i]);
    if (used[source[i]] || permutation[destination[i]] != rank)
      throw errors::view_shape("dimShufflePartial: dimensions must not repeat, got " +
                               std::to_string(source[i]) + " to " + std::to_string(destination[i]) +
                               " again");
    used[source[i]] = true;
    permutation[destination[i]] = source[i];
  }
  unsigned next = 0;
  for (unsigned i = 0; i < rank; ++i) {
    if (permutation[i] != rank)
      continue;
    while (used[next])
      ++next;
    permutation[i] = next++;
  }
  return dimShuffle(permutation);
}

Tensor Tensor::dimRoll(unsigned dimIdx, unsigned newIdx) const {
  return dimShufflePartial({dimIdx}, {newIdx});
}

Tensor Tensor::expand(ArrayRef<std::size_t> indices) const {
  const TensorImpl &t = Access::impl(*this);
  std::vector<std::size_t> inserts(t.shape.size() + 1, 0);
  for (std::size_t i : indices) {
    if (i > t.shape.size())
      throw errors::index_out_of_range("expand: index must be at most the rank " +
                                       std::to_string(t.shape.size()) + ", got " +
                                       std::to_string(i));
    ++inserts[i];
  }
  TensorImpl r = t;
  r.shape.clear();
  r.strides.clear();
  for (std::size_t i = 0; i <= t.shape.size(); ++i) {
    r.shape.insert(r.shape.end(), inserts[i], 1);
    r.strides.insert(r.strides.end(), inserts[i], 1);
    if (i < t.shape.size()) {
      r.shape.push_back(t.shape[i]);
      r.strides.push_back(t.strides[i]);
    }
  }
  return Access::makeTensor(std::move(r));
}

Tensor Tensor::squeeze(ArrayRef<std::size_t> indices) const {
  const TensorImpl &t = Access::impl(*this);
  std::vector<bool> drop(t.shape.size(), false);
  for (std::size_t i : indices) {
    core::checkDim("squeeze", t, static_cast<unsigned>(i));
    if (t.shape[i] != 1)
      throw errors::view_shape("squeeze: dimension " + std::to_string(i) +
                               " must have size 1, got " + std::to_string(t.shape[i]));
    drop[i] = true;
  }
  TensorImpl r = t;
  r.shape.clear();
  r.strides.clear();
  for (std::size_t i = 0; i < t.shape.size(); ++i) {
    if (drop[i])
      continue;
    r.shape.push_back(t.shape[i]);
    r.strides.push_back(t.strides[i]);
  }
  return Access::makeTensor(std::move(r));
}

Tensor Tensor::transpose() const {
  const TensorImpl &t = Access::impl(*this);
  if (t.shape.size() != 2)
    throw errors::view_shape("transpose: rank must be 2, got shape " + core::shapeString(t.shape));
  return dimShuffle({1, 0});
}

Tensor Tensor::subSample(unsigned stride, unsigned dimension) const {
  const TensorImpl &t = Access::impl(*this);
  core::checkDim("subSample", t, dimension);
  if (stride == 0)
    throw errors::view_shape("subSample: stride must be at least 1, got 0");
  TensorImpl r = t;
  r.shape[dimension] = (t.shape[dimension] + stride - 1) / stride;
  r.strides[dimension] *= stride;
  return Access::makeTensor(std::move(r));
}

Tensor Tensor::upsample(unsigned scale, unsigned dimension, UpsampleMethod) const {
  const TensorImpl &t = Access::impl(*this);
  core::checkDim("upsample", t, dimension);
  const std::size_t n = t.shape[dimension];
  return expand({dimension + 1u})
      .broadcast(scale, dimension + 1)
      .reshapePartial(dimension, dimension + 2, {n * scale});
}

Tensor Tensor::broadcast(unsigned N, unsigned dimension) const {
  const TensorImpl &t = Access::impl(*this);
  core::checkDim("broadcast", t, dimension);
  // The repeats are a dimension of stride 0 before the repeated one. reshape merges the two.
  TensorImpl r = t;
  r.shape.insert(r.shape.begin() + dimension, N);
  r.strides.insert(r.strides.begin() + dimension, 0);
  const std::size_t n = t.shape[dimension];
  return Access::makeTensor(std::move(r)).reshapePartial(dimension, dimension + 2, {n * N});
}

Tensor Tensor::reinterpret(const Type &type) const {
  const TensorImpl &t = Access::impl(*this);
  if (core::typeSize(type) != core::typeSize(t.type))
    throw errors::type_mismatch("reinterpret: the type must have the size of " +
                                t.type.toString().str() + ", got " + type.toString().str());
  TensorImpl r = t;
  r.type = type;
  return Access::makeTensor(std::move(r));
}

Tensor Tensor::reverse(unsigned dimension) const {
  const TensorImpl &t = Access::impl(*this);
  core::checkDim("reverse", t, dimension);
  TensorImpl r = t;
  if (t.shape[dimension])
    r.offset += static_cast<std::int64_t>(t.shape[dimension] - 1) * t.strides[dimension];
  r.strides[dimension] = -t.strides[dimension];
  return Access::makeTensor(std::move(r));
}

Tensor concat(ArrayRef<Tensor> ts, unsigned dimension) {
  if (ts.empty())
    throw errors::view_shape("concat: needs at least one tensor, got none");
  const TensorImpl &first = Access::impl(ts[0]);
  core::checkDim("concat", first, dimension);
  std::vector<std::size_t> shape = first.shape;
  shape[dimension] = 0;
  for (const Tensor &x : ts) {
    const TensorImpl &t = Access::impl(x);
    bool ok = t.shape.size() == shape.size();
    for (std::size_t i = 0; ok && i < shape.size(); ++i)
      ok = i == dimension || t.shape[i] == shape[i];
    if (!ok)
      throw errors::view_shape(
          "concat: shapes must agree except in dimension " + std::to_string(dimension) + ", got " +
          core::shapeString(first.shape) + " and " + core::shapeString(t.shape));
    if (t.type != first.type)
      throw errors::type_mismatch("concat: element types must agree, got " +
                                  first.type.toString().str() + " and " + t.type.toString().str());
    if (t.graph != first.graph)
      throw errors::view_shape("concat: tensors must belong to one graph");
    shape[dimension] += t.shape[dimension];
  }
  if (ts.size() == 1)
    return ts[0];
  // With the dimension rolled to the front, the elements are those of one tensor after another.
  core::RegionList list;
  std::size_t total = 0;
  for (const Tensor &x : ts)
    core::appendTo(list, total, Access::impl(x.dimRoll(dimension, 0)));
  std::vector<std::size_t> rolled = shape;
  rolled.erase(rolled.begin() + dimension);
  rolled.insert(rolled.begin(), shape[dimension]);
  return core::fromList(first, std::move(list), rolled).dimRoll(0, dimension);
}

Tensor concat(const Tensor &first, const Tensor &second, unsigned dimension) {
  return concat({first, second}, dimension);
}

Tensor append(const Tensor &first, const Tensor &second, unsigned dimension) {
  return concat(first, second.expand({dimension}), dimension);
}

Tensor append(const Tensor &first, const Tensor &second) { return append(first, second, 0); }

} // namespace poplar
