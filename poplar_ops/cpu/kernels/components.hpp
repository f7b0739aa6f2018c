// SPDX-License-Identifier: Apache-2.0
//
// Vectors of numbers that come as fp16 or fp32, in two widths.
#pragma once

#include "vectors.hpp"

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
