// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace poplar {

class Target;
class VertexIntrospector;

struct VertexPerfEstimate {
  std::uint64_t cycles = 0;
  std::uint64_t flops = 0;
  VertexPerfEstimate() = default;
  VertexPerfEstimate(std::uint64_t cycles, std::uint64_t flops = 0)
      : cycles(cycles), flops(flops) {}
};

using PerfEstimateFunc =
    std::function<VertexPerfEstimate(const VertexIntrospector &v, const Target &target)>;

} // namespace poplar
