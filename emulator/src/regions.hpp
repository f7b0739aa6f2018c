// SPDX-License-Identifier: Apache-2.0
// Layouts of views, and walking their elements in row-major order as contiguous pieces of
// variables.
#pragma once

#include <algorithm>

#include "core.hpp"

namespace poplar {
namespace core {

// Maps [begin, begin + length) of a region list to pieces of variables.
template <class F>
void forEachInList(const RegionList &list, std::size_t begin, std::size_t length, F &&f) {
  std::size_t i =
      std::upper_bound(list.starts.begin(), list.starts.end(), begin) - list.starts.begin() - 1;
  while (length) {
    const Region &r = list.regions[i];
    const std::size_t skip = begin - list.starts[i];
    const std::size_t n = std::min(length, r.length - skip);
    if (r.step == 1) {
      f(r.var, static_cast<std::size_t>(r.begin) + skip, n);
    } else {
      for (std::size_t k = 0; k < n; ++k)
        f(r.var, static_cast<std::size_t>(r.begin + static_cast<std::int64_t>(skip + k) * r.step),
          std::size_t(1));
    }
    begin += n;
    length -= n;
    ++i;
  }
}

// Strided dimensions of a view with sizes of 1 dropped and compatible neighbours merged.
struct Dims {
  std::vector<std::size_t> shape;
  std::vector<std::int64_t> strides;
};
Dims coalesce(const std::vector<std::size_t> &shape, const std::vector<std::int64_t> &strides);
/// Strides of the same elements under another shape. False where no strides can express it.
bool reshapeStrides(const TensorImpl &t, const std::vector<std::size_t> &shape,
                    std::vector<std::int64_t> &strides);
/// Appends the view's elements, in order; `total` counts the list's elements.
void appendTo(RegionList &list, std::size_t &total, const TensorImpl &t);
/// A tensor of the list's elements, with the graph and the type of `like`.
Tensor fromList(const TensorImpl &like, RegionList list, std::vector<std::size_t> shape);

/// Calls f(base, length, step) for the innermost runs of the view, in order.
/// `base` is an index into what the view is of: its variable or its region list.
template <class F> void forEachBaseRun(const TensorImpl &t, F &&f) {
  const Dims d = coalesce(t.shape, t.strides);
  for (std::size_t n : d.shape)
    if (n == 0)
      return;
  const std::size_t rank = d.shape.size();
  if (rank == 0) {
    if (numElements(t.shape))
      f(t.offset, std::size_t(1), std::int64_t(1));
    return;
  }
  const std::size_t inner = d.shape[rank - 1];
  const std::int64_t step = d.strides[rank - 1];
  std::vector<std::size_t> index(rank, 0);
  std::int64_t base = t.offset;
  for (;;) {
    f(base, inner, step);
    std::size_t k = rank - 1;
    for (;;) {
      if (k == 0)
        return;
      --k;
      base += d.strides[k];
      if (++index[k] < d.shape[k])
        break;
      base -= static_cast<std::int64_t>(d.shape[k]) * d.strides[k];
      index[k] = 0;
    }
  }
}

/// Calls f(var, begin, length) for contiguous pieces, in the order of the flattened view, without
/// merging neighbours.
template <class F> void forEachPiece(const TensorImpl &t, F &&f) {
  forEachBaseRun(t, [&](std::int64_t base, std::size_t length, std::int64_t step) {
    if (step == 1) {
      if (t.list)
        forEachInList(*t.list, static_cast<std::size_t>(base), length, f);
      else
        f(t.var, static_cast<std::size_t>(base), length);
      return;
    }
    for (std::size_t k = 0; k < length; ++k) {
      const std::size_t at = static_cast<std::size_t>(base + static_cast<std::int64_t>(k) * step);
      if (t.list)
        forEachInList(*t.list, at, 1, f);
      else
        f(t.var, at, std::size_t(1));
    }
  });
}

/// As forEachPiece, with neighbouring pieces merged.
template <class F> void forEachRegion(const TensorImpl &t, F &&f) {
  VarId var = ~0u;
  std::size_t begin = 0, length = 0;
  forEachPiece(t, [&](VarId v, std::size_t b, std::size_t n) {
    if (length && v == var && b == begin + length) {
      length += n;
      return;
    }
    if (length)
      f(var, begin, length);
    var = v;
    begin = b;
    length = n;
  });
  if (length)
    f(var, begin, length);
}

struct Piece {
  VarId var;
  std::size_t begin;
  std::size_t length;
};
std::vector<Piece> regionsOf(const Tensor &t);

/// Calls f(srcVar, srcBegin, dstVar, dstBegin, length) for elements of two tensors of one size that
/// correspond and lie in one piece in each.
template <class F> void forEachPair(const Tensor &src, const Tensor &dst, F &&f) {
  const std::vector<Piece> from = regionsOf(src), to = regionsOf(dst);
  std::size_t i = 0, j = 0, used = 0, filled = 0; // of from[i] and to[j]
  while (i < from.size() && j < to.size()) {
    const std::size_t n = std::min(from[i].length - used, to[j].length - filled);
    f(from[i].var, from[i].begin + used, to[j].var, to[j].begin + filled, n);
    if ((used += n) == from[i].length) {
      ++i;
      used = 0;
    }
    if ((filled += n) == to[j].length) {
      ++j;
      filled = 0;
    }
  }
}

} // namespace core
} // namespace poplar
