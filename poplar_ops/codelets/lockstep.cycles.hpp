// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq {
namespace cycles {

// Load, or.
inline std::uint64_t anyIpu(double nIpus) { return single(nIpus * (2 + repeated) + 1); }

} // namespace cycles
} // namespace sparq
