// SPDX-License-Identifier: Apache-2.0
//
// Asks for memory before it is read. Like arith.hpp, kernels include this inside an unnamed
// namespace.
#pragma once

#include <cstdint>

namespace sparq {

// The line of this address, into the first or the second cache. It may be beyond the end of any
// memory.
template <unsigned level = 1> inline void fetchLine(std::uintptr_t at) {
  static_assert(level == 1 || level == 2, "the first or the second cache");
  __builtin_prefetch(reinterpret_cast<const void *>(at), 0, level == 1 ? 3 : 2);
  // GCC (12 at least) takes a function that does nothing but this for one without effects, and
  // drops every call of it that it has not inlined by then. An assembly, though of nothing, is an
  // effect.
  asm volatile("");
}

template <unsigned level = 1> inline void fetchLine(const void *at) {
  fetchLine<level>(reinterpret_cast<std::uintptr_t>(at));
}

} // namespace sparq
