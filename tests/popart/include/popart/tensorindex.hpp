// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for a part of PopART's interface. Here: the tensors of an operator, by index.
#pragma once

#include "tensor.hpp"
#include <map>

namespace popart {

class TensorIndexMap {
public:
  void insert(int index, Tensor *tensor) { map_[index] = tensor; }
  bool hasIndex(int index) const { return map_.count(index) != 0; }
  Tensor *tensor(int index) const { return map_.at(index); }
  const std::vector<Tensor *> tensors() const {
    std::vector<Tensor *> all;
    for (const auto &entry : map_)
      all.push_back(entry.second);
    return all;
  }

private:
  std::map<int, Tensor *> map_;
};

} // namespace popart
