// SPDX-License-Identifier: Apache-2.0
//
// Who works on what: most pairs of (batch element, KV head) go to one thread each, the longest
// first; those that would leave threads idle at the end are split by blocks of positions and done
// by all threads together.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparq::cpu {

// Orders `pairs` (0 .. n - 1 on entry, in any order) by length, longest first, equal lengths by
// number; returns how many from the front to split.
std::size_t schedulePairs(std::uint32_t *pairs, std::size_t n, const std::size_t *lengths,
                          unsigned nThreads);

} // namespace sparq::cpu
