// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cycles.hpp"

namespace sparq::cycles {

inline std::uint64_t appendOffsets() { return single(8); }
// Load the half and its word; mask, shift, OR, store; advance the address.
inline std::uint64_t appendTail(double d) { return multi(10 + share(d) * (7 + reloaded)); }
// Widening and adding, beside six loads and four stores.
inline std::uint64_t appendSum(double width) { return shared(width / 8, pass(8, 10, reloaded)); }
inline std::uint64_t advanceLength() { return single(10); }
inline std::uint64_t anyFull(double n) { return single(n * (2 + repeated)); }
inline std::uint64_t flushOffsets(double d) { return multi(12 + share(d) * (2 + reloaded)); }

} // namespace sparq::cycles
