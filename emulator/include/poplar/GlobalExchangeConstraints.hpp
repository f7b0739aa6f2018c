// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "ArrayRef.hpp"

namespace poplar {

/// Data that moves from one IPU to another.
struct GlobalExchangeFlow {
  unsigned src;
  unsigned dst;
  GlobalExchangeFlow(unsigned src, unsigned dst) : src(src), dst(dst) {}
};

/// Bytes a second that flows share.
struct GlobalExchangeConstraint {
  double bandwidth;
  std::vector<GlobalExchangeFlow> flows;
  GlobalExchangeConstraint(double bandwidth, ArrayRef<GlobalExchangeFlow> flows)
      : bandwidth(bandwidth), flows(flows.begin(), flows.end()) {}
};

} // namespace poplar
