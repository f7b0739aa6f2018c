// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for a part of PopART's interface. Here: a graph of operators.
#pragma once

#include "op.hpp"
#include "topocons.hpp"

namespace popart {

class Graph {
public:
  explicit Graph(Ir &ir) : topoCons(std::make_unique<TopoCons>()), ir_(ir) {}
  std::map<OpId, std::unique_ptr<Op>> &getOps() { return ops_; }
  const std::map<OpId, std::unique_ptr<Op>> &getOps() const { return ops_; }
  Ir &getIr() { return ir_; }
  const Ir &getIr() const { return ir_; }

  std::unique_ptr<TopoCons> topoCons;
  std::map<TensorId, Tensor> tensors;

private:
  Ir &ir_;
  std::map<OpId, std::unique_ptr<Op>> ops_;
};

} // namespace popart
