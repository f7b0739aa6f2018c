// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for a part of PopART's interface. Here: what a user asks of a whole model.
#pragma once

#include <cstdint>

namespace popart {

struct SessionOptions {
  bool enableStochasticRounding = false;
  bool enableFloatingPointChecks = false;
  bool enableReplicatedGraphs = false;
  std::int64_t replicatedGraphCount = 1;
  std::int64_t getGlobalReplicationFactor() const {
    return enableReplicatedGraphs ? replicatedGraphCount : 1;
  }
};

} // namespace popart
