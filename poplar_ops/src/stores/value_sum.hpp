// SPDX-License-Identifier: Apache-2.0
//
// The running sum of all values of a task, from which their mean is made.
#pragma once

#include "store.hpp"

namespace sparq {

class ValueSum final : public Store {
public:
  static constexpr const char *what = "a sum of the values";
  ValueSum(poplar::Graph &graph, const Cache &cache, bool);
  const poplar::Tensor &sum() const { return sum_; } // {nTasks, headDim} FLOAT

  std::vector<Layered> layered() const override { return {state_}; }
  void addAppend(const Append &step, const poplar::ComputeSet &cs, unsigned task) const override;
  void fill(FillStep &step) const override;
  std::unique_ptr<HostStore> host(poplar::Graph &graph, const Cache &cache) const override;

private:
  Layered state_;
  poplar::Tensor sum_;
};

} // namespace sparq
