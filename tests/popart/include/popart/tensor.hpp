// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for a part of PopART's interface. Here: a tensor of the model and who uses it.
#pragma once

#include "tensorinfo.hpp"

namespace popart {

class Op;

class Consumers {
public:
  std::vector<Op *> getOps() const { return ops_; }
  void increment(Op *op) { ops_.push_back(op); }

private:
  std::vector<Op *> ops_;
};

class Tensor {
public:
  TensorId id;
  TensorInfo info;
  Consumers consumers;
};

} // namespace popart
