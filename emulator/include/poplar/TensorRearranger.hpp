// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "ArrayRef.hpp"
#include "Interval.hpp"
#include "Tensor.hpp"

namespace poplar {

/// An order of the elements of tensors of one size, made by Graph::getSimplifyingRearranger.
class TensorRearranger {
public:
  TensorRearranger() = default;
  TensorRearranger(const TensorRearranger &) = default;
  TensorRearranger &operator=(const TensorRearranger &) = default;

  /// The flattened tensor in this order.
  Tensor rearrange(const Tensor &t) const;
  /// The reverse.
  Tensor undoRearrangement(const Tensor &t) const;
  /// Where intervals of the flattened tensor come to lie.
  std::vector<Interval> rearrange(ArrayRef<Interval> is) const;
  std::vector<Interval> undoRearrangement(ArrayRef<Interval> is) const;
  bool valid() const { return !order_.empty(); }

private:
  friend class Graph;
  std::vector<Interval> order_;   // of the flattened tensor
  std::vector<Interval> inverse_; // of the rearranged one
};

} // namespace poplar
