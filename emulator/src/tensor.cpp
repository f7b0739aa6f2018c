// SPDX-License-Identifier: Apache-2.0
// What a tensor says of itself: shape, elements, overlaps, text.
// Operations that make other tensors of it: tensor_views.cpp.
#include <poplar/Tensor.hpp>

#include <algorithm>
#include <iostream>

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
    throw errors::invalid_tensor("tensor must be valid, got a default-constructed Tensor");
  return *t.impl;
}

Tensor Access::makeTensor(TensorImpl impl) {
  Tensor t;
  t.impl = std::make_shared<const TensorImpl>(std::move(impl));
  return t;
}

void checkDim(const char *op, const TensorImpl &t, unsigned dim) {
  if (dim >= t.shape.size())
    throw errors::index_out_of_range(std::string(op) + ": dimension must be below the rank " +
                                     std::to_string(t.shape.size()) + " of shape " +
                                     shapeString(t.shape) + ", got " + std::to_string(dim));
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

bool Tensor::constantAsDouble(double &value) const {
  const TensorImpl &t = Access::impl(*this);
  bool found = false;
  if (core::numElements(t.shape) == 1)
    core::forEachPiece(t, [&](core::VarId v, std::size_t begin, std::size_t) {
      const core::Variable &variable = t.graph->variables[v];
      found = variable.constant && !variable.replicaIndex;
      if (found)
        value = core::valueAsDouble(variable.data.data() + begin * core::typeSize(variable.type),
                                    variable.type);
    });
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

} // namespace poplar
