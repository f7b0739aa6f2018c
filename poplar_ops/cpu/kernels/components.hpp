// SPDX-License-Identifier: Apache-2.0
//
// Vectors of numbers that come as fp16 or fp32, in two widths; heads of a group by fours.
#pragma once

#include "vectors.hpp"

// A number known to the compiler.
template <unsigned n> struct Fixed {
  constexpr operator unsigned() const { return n; }
};

// Calls `use(count, head)` for all heads of a group: four, two or one (a Fixed) from `head` on.
template <class Use> inline void eachHeads(unsigned groupSize, const Use &use) {
  unsigned head = 0;
  for (; head + 4 <= groupSize; head += 4)
    use(Fixed<4>(), head);
  if (head + 2 <= groupSize) {
    use(Fixed<2>(), head);
    head += 2;
  }
  if (head < groupSize)
    use(Fixed<1>(), head);
}

// A vector of Vec's width, or of eight lanes.
template <class V> struct Components;
template <> struct Components<Vec> {
  static constexpr unsigned n = width;
  static Vec get(const Half *from) { return loadHalf(from); }
  static Vec get(const float *from) { return load(from); }
  static void put(float *to, Vec x) { store(to, x); }
  static Vec all(float x) { return broadcast(x); }
};
#ifdef SPARQ_WIDE_VECTORS // the last eight of head_dim may be half a vector
template <> struct Components<Lanes> {
  static constexpr unsigned n = nLanes;
  static Lanes get(const Half *from) { return loadHalfLanes(from); }
  static Lanes get(const float *from) { return loadLanes(from); }
  static void put(float *to, Lanes x) { storeLanes(to, x); }
  static Lanes all(float x) { return Lanes{x, x, x, x, x, x, x, x}; }
};
using EightComponents = Lanes;
#else
using EightComponents = Vec; // head_dim is a multiple of eight, so nothing is left
#endif
