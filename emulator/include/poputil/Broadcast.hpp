// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poplar/Tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "exceptions.hpp"

namespace poputil {

/// Adds dimensions of 1 in front of the tensor of lower rank.
inline void expandToMatchRanks(poplar::Tensor &a, poplar::Tensor &b) {
  for (poplar::Tensor *t : {&a, &b})
    while (t->rank() < std::max(a.rank(), b.rank()))
      *t = t->expand({0});
}
/// Repeats dimensions of 1, as NumPy does; any other difference is an error.
inline void broadcastToMatch(poplar::Tensor &a, const std::vector<std::size_t> &shape) {
  poplar::Tensor r = a;
  while (r.rank() < shape.size())
    r = r.expand({0});
  if (r.rank() != shape.size())
    throw poplibs_error("broadcastToMatch: the tensor must have rank " +
                        std::to_string(shape.size()) + " or less, got " + a.shapeToString());
  for (unsigned i = 0; i != r.rank(); ++i) {
    if (r.dim(i) != shape[i] && r.dim(i) != 1)
      throw poplibs_error("broadcastToMatch: dimension " + std::to_string(i) + " must be 1 or " +
                          std::to_string(shape[i]) + ", got " + a.shapeToString());
    if (r.dim(i) != shape[i])
      r = r.broadcast(static_cast<unsigned>(shape[i]), i);
  }
  a = r;
}
inline std::vector<std::size_t> broadcastShape(poplar::Tensor a, poplar::Tensor b) {
  expandToMatchRanks(a, b);
  std::vector<std::size_t> shape = a.shape();
  for (unsigned i = 0; i != shape.size(); ++i)
    if (shape[i] == 1)
      shape[i] = b.dim(i);
  return shape;
}
inline void broadcastToMatch(poplar::Tensor &a, poplar::Tensor &b) {
  const std::vector<std::size_t> shape = broadcastShape(a, b);
  poplar::Tensor r = a;
  broadcastToMatch(b, shape);
  broadcastToMatch(r, shape);
  a = r;
}
inline void broadcastToMatch(poplar::Tensor &a, poplar::Tensor &b, poplar::Tensor &c) {
  broadcastToMatch(a, b);
  broadcastToMatch(a, c);
  broadcastToMatch(b, c);
}
inline bool canBroadcastToMatch(const poplar::Tensor &a, const poplar::Tensor &b) {
  poplar::Tensor x = a, y = b;
  try {
    broadcastToMatch(x, y);
  } catch (const poplibs_error &) {
    return false;
  }
  return true;
}

} // namespace poputil
