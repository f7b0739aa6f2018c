// SPDX-License-Identifier: Apache-2.0
// Views of variables.
#include <poplar/Tensor.hpp>

#include <iostream>
#include <numeric>
#include <sstream>

#include "core.hpp"
#include "regions.hpp"

namespace poplar {
namespace core {

std::string shapeString(const std::vector<std::size_t> &shape) {
  std::string s = "{";
  for (std::size_t i = 0; i < shape.size(); ++i)
    s += (i ? "," : "") + std::to_string(shape[i]);
  return s + "}";
}

std::size_t numElements(const std::vector<std::size_t> &shape) {
  std::size_t n = 1;
  for (std::size_t d : shape)
    n *= d;
  return n;
}

const TensorImpl &Access::impl(const Tensor &t) {
  if (!t.impl)
    throw tensor_creation_error("tensor must be valid, got a default-constructed Tensor");
  return *t.impl;
}

Tensor Access::makeTensor(TensorImpl impl) {
  Tensor t;
  t.impl = std::make_shared<const TensorImpl>(std::move(impl));
  return t;
}

Dims coalesce(const std::vector<std::size_t> &shape, const std::vector<std::int64_t> &strides) {
  Dims d;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1)
      continue;
    if (!d.shape.empty() && d.strides.back() == strides[i] * static_cast<std::int64_t>(shape[i])) {
      d.shape.back() *= shape[i];
      d.strides.back() = strides[i];
    } else {
      d.shape.push_back(shape[i]);
      d.strides.push_back(strides[i]);
    }
  }
  return d;
}

std::vector<Piece> regionsOf(const Tensor &t) {
  std::vector<Piece> r;
  forEachRegion(Access::impl(t),
                [&](VarId v, std::size_t b, std::size_t n) { r.push_back({v, b, n}); });
  return r;
}

static std::vector<std::int64_t> rowMajor(const std::vector<std::size_t> &shape) {
  std::vector<std::int64_t> s(shape.size());
  std::int64_t n = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    s[i] = n;
    n *= static_cast<std::int64_t>(shape[i]);
  }
  return s;
}

// Appends the view's elements to a region list, in order.
static void appendTo(RegionList &list, std::size_t &total, const TensorImpl &t) {
  auto push = [&](VarId var, std::int64_t begin, std::size_t n, std::int64_t step) {
    if (!list.regions.empty()) {
      Region &last = list.regions.back();
      const std::int64_t next = last.begin + static_cast<std::int64_t>(last.length) * last.step;
      if (last.var == var && (n == 1 || step == last.step) && begin == next) {
        last.length += n;
        total += n;
        return;
      }
      if (last.var == var && last.length == 1 && n == 1) { // starts a stepped region
        last.step = begin - last.begin;
        last.length = 2;
        total += 1;
        return;
      }
    }
    list.regions.push_back({var, begin, n, n == 1 ? 1 : step});
    list.starts.push_back(total);
    total += n;
  };
  forEachBaseRun(t, [&](std::int64_t base, std::size_t length, std::int64_t step) {
    if (!t.list) {
      push(t.var, base, length, length == 1 ? 1 : step);
    } else if (step == 1) {
      forEachInList(*t.list, static_cast<std::size_t>(base), length,
                    [&](VarId v, std::size_t b, std::size_t n) {
                      push(v, static_cast<std::int64_t>(b), n, 1);
                    });
    } else {
      for (std::size_t k = 0; k < length; ++k)
        forEachInList(*t.list, static_cast<std::size_t>(base + static_cast<std::int64_t>(k) * step),
                      1, [&](VarId v, std::size_t b, std::size_t n) {
                        push(v, static_cast<std::int64_t>(b), n, 1);
                      });
    }
  });
}

static Tensor fromList(const TensorImpl &like, RegionList list, std::vector<std::size_t> shape) {
  TensorImpl r;
  r.graph = like.graph;
  r.type = like.type;
  r.strides = rowMajor(shape);
  r.shape = std::move(shape);
  if (list.regions.size() == 1 && list.regions[0].step == 1) {
    r.var = list.regions[0].var;
    r.offset = list.regions[0].begin;
  } else if (list.regions.empty()) {
    r.var = like.var == ~0u ? 0 : like.var;
  } else {
    r.list = std::make_shared<const RegionList>(std::move(list));
  }
  return Access::makeTensor(std::move(r));
}

// Strides of the same elements under another shape, if strides can express it.
static bool reshapeStrides(const TensorImpl &t, const std::vector<std::size_t> &shape,
                           std::vector<std::int64_t> &strides) {
  const Dims d = coalesce(t.shape, t.strides);
  strides.assign(shape.size(), 1);
  std::size_t i = shape.size();
  for (std::size_t g = d.shape.size(); g-- > 0;) {
    std::size_t left = d.shape[g];
    std::int64_t stride = d.strides[g];
    while (left > 1) {
      if (i == 0)
        return false;
      --i;
      if (shape[i] == 1)
        continue;
      if (left % shape[i])
        return false;
      strides[i] = stride;
      stride *= static_cast<std::int64_t>(shape[i]);
      left /= shape[i];
    }
  }
  return true;
}

static void checkDim(const char *op, const TensorImpl &t, unsigned dim) {
  if (dim >= t.shape.size())
    throw index_error(std::string(op) + ": dimension must be below the rank " +
                      std::to_string(t.shape.size()) + " of shape " + shapeString(t.shape) +
                      ", got " + std::to_string(dim));
}

Tensor flattenTensor(const Tensor &t) { return t.flatten(); }

std::string tensorName(const Tensor &t) {
  const TensorImpl &i = Access::impl(t);
  std::string s;
  std::set<VarId> seen;
  forEachPiece(i, [&](VarId v, std::size_t, std::size_t) {
    if (seen.size() < 3 && seen.insert(v).second)
      s += (s.empty() ? "'" : ", '") + i.graph->variables[v].name + "'";
  });
  return s.empty() ? "(empty)" : s;
}

} // namespace core

using core::Access;
using core::TensorImpl;

Tensor::Tensor() = default;
Tensor::~Tensor() = default;

Type Tensor::elementType() const { return Access::impl(*this).type; }
std::size_t Tensor::numElements() const { return core::numElements(Access::impl(*this).shape); }
std::vector<std::size_t> Tensor::shape() const { return Access::impl(*this).shape; }
unsigned Tensor::rank() const { return static_cast<unsigned>(Access::impl(*this).shape.size()); }
bool Tensor::valid() const { return impl != nullptr; }

std::size_t Tensor::dim(unsigned i) const {
  const TensorImpl &t = Access::impl(*this);
  core::checkDim("dim", t, i);
  return t.shape[i];
}

Tensor Tensor::operator[](std::size_t i) const & {
  const TensorImpl &t = Access::impl(*this);
  core::checkDim("operator[]", t, 0);
  if (i >= t.shape[0])
    throw index_error("operator[]: index must be below " + std::to_string(t.shape[0]) + " (shape " +
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
    throw index_error("slice: [begin, end) must be within [0, " +
                      std::to_string(t.shape[dimension]) + ") of dimension " +
                      std::to_string(dimension) + " of shape " + core::shapeString(t.shape) +
                      ", got [" + std::to_string(begin) + ", " + std::to_string(end) + ")");
  TensorImpl r = t;
  r.offset += static_cast<std::int64_t>(begin) * t.strides[dimension];
  r.shape[dimension] = end - begin;
  return Access::makeTensor(std::move(r));
}

Tensor Tensor::slice(ArrayRef<std::size_t> begin, ArrayRef<std::size_t> end) const {
  const TensorImpl &t = Access::impl(*this);
  if (begin.size() != end.size() || begin.size() > t.shape.size())
    throw index_error("slice: begin and end must have one length of at most the rank " +
                      std::to_string(t.shape.size()) + ", got " + std::to_string(begin.size()) +
                      " and " + std::to_string(end.size()));
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
  for (const auto &list : intervals)
    r.push_back(concat(slices(ArrayRef<Interval>(list), dimension), dimension));
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
    throw tensor_creation_error("reshape: the new shape must have " +
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
    throw index_error("flatten: dimensions must be within [0, " + std::to_string(t.shape.size()) +
                      "), got [" + std::to_string(dimBegin) + ", " + std::to_string(dimEnd) + ")");
  std::size_t n = 1;
  for (unsigned i = dimBegin; i < dimEnd; ++i)
    n *= t.shape[i];
  return reshapePartial(dimBegin, dimEnd, {n});
}

Tensor Tensor::reshapePartial(unsigned beginIndex, unsigned endIndex,
                              ArrayRef<std::size_t> newDims) const {
  const TensorImpl &t = Access::impl(*this);
  if (beginIndex > endIndex || endIndex > t.shape.size())
    throw index_error("reshapePartial: dimensions must be within [0, " +
                      std::to_string(t.shape.size()) + "), got [" + std::to_string(beginIndex) +
                      ", " + std::to_string(endIndex) + ")");
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
    throw tensor_creation_error("dimShuffle: the permutation must hold each of the " +
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
    throw tensor_creation_error(
        "dimShufflePartial: source and destination must have one length, got " +
        std::to_string(source.size()) + " and " + std::to_string(destination.size()));
  const unsigned rank = static_cast<unsigned>(t.shape.size());
  std::vector<unsigned> permutation(rank, rank);
  std::vector<bool> used(rank, false);
  for (std::size_t i = 0; i < source.size(); ++i) {
    core::checkDim("dimShufflePartial", t, source[i]);
    core::checkDim("dimShufflePartial", t, destination[i]);
    if (used[source[i]] || permutation[destination[i]] != rank)
      throw tensor_creation_error("dimShufflePartial: dimensions must not repeat, got " +
                                  std::to_string(source[i]) + " to " +
                                  std::to_string(destination[i]) + " again");
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
      throw index_error("expand: index must be at most the rank " + std::to_string(t.shape.size()) +
                        ", got " + std::to_string(i));
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
      throw tensor_creation_error("squeeze: dimension " + std::to_string(i) +
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
    throw tensor_creation_error("transpose: rank must be 2, got shape " +
                                core::shapeString(t.shape));
  return dimShuffle({1, 0});
}

Tensor Tensor::subSample(unsigned stride, unsigned dimension) const {
  const TensorImpl &t = Access::impl(*this);
  core::checkDim("subSample", t, dimension);
  if (stride == 0)
    throw tensor_creation_error("subSample: stride must be at least 1, got 0");
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
    throw type_error("reinterpret: the type must have the size of " + t.type.toString().str() +
                     ", got " + type.toString().str());
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

bool Tensor::isContiguous() const {
  std::size_t n = 0;
  core::forEachRegion(Access::impl(*this), [&](core::VarId, std::size_t, std::size_t) { ++n; });
  return n <= 1;
}

// Sorted pieces; two of them overlap exactly when the view repeats an element.
static std::vector<core::Piece> sortedPieces(const Tensor &t) {
  std::vector<core::Piece> p = core::regionsOf(t);
  std::sort(p.begin(), p.end(), [](const core::Piece &a, const core::Piece &b) {
    return a.var != b.var ? a.var < b.var : a.begin < b.begin;
  });
  return p;
}

bool Tensor::containsAliases() const {
  const std::vector<core::Piece> p = sortedPieces(*this);
  for (std::size_t i = 1; i < p.size(); ++i)
    if (p[i].var == p[i - 1].var && p[i].begin < p[i - 1].begin + p[i - 1].length)
      return true;
  return false;
}

bool Tensor::containsConstant() const {
  const TensorImpl &t = Access::impl(*this);
  if (!t.list)
    return core::numElements(t.shape) && t.graph->variables[t.var].constant;
  bool found = false;
  core::forEachPiece(
      t, [&](core::VarId v, std::size_t, std::size_t) { found |= t.graph->variables[v].constant; });
  return found;
}

bool Tensor::isParallelWriteable() const { return !containsAliases() && !containsConstant(); }

std::vector<Interval> Tensor::getContiguousRegions() const {
  std::vector<Interval> r;
  std::size_t at = 0;
  core::forEachRegion(Access::impl(*this), [&](core::VarId, std::size_t, std::size_t n) {
    r.emplace_back(at, at + n);
    at += n;
  });
  return r;
}

std::vector<VariableInterval> Tensor::getVarRegions() const {
  std::vector<VariableInterval> r;
  core::forEachRegion(Access::impl(*this), [&](core::VarId v, std::size_t b, std::size_t n) {
    r.emplace_back(VariableRef(v), Interval(b, b + n));
  });
  return r;
}

bool Tensor::intersectsWith(const Tensor &other) const {
  const std::vector<core::Piece> a = sortedPieces(*this), b = sortedPieces(other);
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (a[i].var != b[j].var) {
      (a[i].var < b[j].var ? i : j)++;
    } else if (a[i].begin + a[i].length <= b[j].begin) {
      ++i;
    } else if (b[j].begin + b[j].length <= a[i].begin) {
      ++j;
    } else {
      return true;
    }
  }
  return false;
}

bool Tensor::operator==(const Tensor &other) const {
  if (!impl || !other.impl)
    return impl == other.impl;
  if (impl == other.impl)
    return true;
  if (impl->graph != other.impl->graph || impl->type != other.impl->type ||
      impl->shape != other.impl->shape)
    return false;
  const auto a = core::regionsOf(*this), b = core::regionsOf(other);
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](const core::Piece &x, const core::Piece &y) {
           return x.var == y.var && x.begin == y.begin && x.length == y.length;
         });
}

std::string Tensor::shapeToString() const { return core::shapeString(shape()); }

std::string Tensor::getVarStr() const { return core::tensorName(*this); }

std::string Tensor::getDebugStr() const {
  return core::tensorName(*this) + " " + elementType().toString().str() + shapeToString();
}

void Tensor::dump() const { std::cerr << getDebugStr() << "\n"; }

void Tensor::dumpRegions() const {
  for (const VariableInterval &r : getVarRegions())
    std::cerr << Access::impl(*this).graph->variables[r.var.id()].name << r.interval << "\n";
}

std::ostream &operator<<(std::ostream &os, const Tensor &tensor) {
  return os << tensor.getDebugStr();
}

Tensor concat(ArrayRef<Tensor> ts, unsigned dimension) {
  if (ts.empty())
    throw tensor_creation_error("concat: needs at least one tensor, got none");
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
      throw tensor_creation_error(
          "concat: shapes must agree except in dimension " + std::to_string(dimension) + ", got " +
          core::shapeString(first.shape) + " and " + core::shapeString(t.shape));
    if (t.type != first.type)
      throw type_error("concat: element types must agree, got " + first.type.toString().str() +
                       " and " + t.type.toString().str());
    if (t.graph != first.graph)
      throw tensor_creation_error("concat: tensors must belong to one graph");
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
