// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// Load, compare, copy.
inline std::uint64_t greatestOfIpus(double nIpus) { return single(nIpus * (3 + counted) + 2); }

} // namespace sparq::cycles
