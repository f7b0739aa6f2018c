// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

// Load, compare, branch, copy.
inline std::uint64_t longestRow(double nSlots) { return shared(nSlots, 4 + computed); }
inline std::uint64_t nextWave() { return single(5 * 4 + 8); }

} // namespace sparq::cycles
