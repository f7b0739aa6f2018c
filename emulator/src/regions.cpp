// SPDX-License-Identifier: Apache-2.0
// Arithmetic of shapes, strides and region lists.
#include "regions.hpp"

namespace poplar {
namespace core {

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

bool reshapeStrides(const TensorImpl &t, const std::vector<std::size_t> &shape,
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

static std::vector<std::int64_t> rowMajor(const std::vector<std::size_t> &shape) {
  std::vector<std::int64_t> s(shape.size());
  std::int64_t n = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    s[i] = n;
    n *= static_cast<std::int64_t>(shape[i]);
  }
  return s;
}

void appendTo(RegionList &list, std::size_t &total, const TensorImpl &t) {
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

Tensor fromList(const TensorImpl &like, RegionList list, std::vector<std::size_t> shape) {
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

} // namespace core
} // namespace poplar
