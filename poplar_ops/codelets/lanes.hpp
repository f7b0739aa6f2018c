// SPDX-License-Identifier: Apache-2.0
//
// Eight fp32 lanes, the unit in which the contract orders its sums (docs/exactness.md E3), and the
// loads that fill them from fp16. On an IPU a Lanes is four float2 pairs; elsewhere whatever SIMD
// the compiler has.
#pragma once

// No contraction of a * b + c, whatever flags the compiler of an IPU takes (contract E1).
#ifdef __clang__
#pragma clang fp contract(off)
#endif

#include "arith.hpp"
#include <poplar/Vertex.hpp>
#ifndef __IPU__
#include <poplar/HalfFloat.hpp>
#endif

#include "loads.hpp" // after what declares half

namespace sparq {

typedef float Lanes __attribute__((vector_size(32)));
typedef unsigned LaneBits __attribute__((vector_size(32)));
// Half as many, where the work is too small for eight at a time on six workers.
typedef float Quad __attribute__((vector_size(16)));
typedef unsigned QuadBits __attribute__((vector_size(16)));
constexpr unsigned quadSize = 4;
typedef float Pair __attribute__((vector_size(8)));
constexpr unsigned pairSize = 2;
template <> struct BitsOf<Quad> {
  using type = QuadBits;
};
template <> struct BitsOf<Lanes> {
  using type = LaneBits;
};

static constexpr auto ONE_PTR = poplar::VectorLayout::ONE_PTR;
using FloatsIn = poplar::Input<poplar::Vector<float, ONE_PTR, 8>>;
using FloatsOut = poplar::Output<poplar::Vector<float, ONE_PTR, 8>>;
using FloatsInOut = poplar::InOut<poplar::Vector<float, ONE_PTR, 8>>;
using HalvesIn = poplar::Input<poplar::Vector<half, ONE_PTR, 8>>;
using HalvesOut = poplar::Output<poplar::Vector<half, ONE_PTR, 8>>;
using HalvesInOut = poplar::InOut<poplar::Vector<half, ONE_PTR, 8>>;
using WordsIn = poplar::Input<poplar::Vector<unsigned, ONE_PTR, 8>>;
using WordsOut = poplar::Output<poplar::Vector<unsigned, ONE_PTR, 8>>;
using WordsInOut = poplar::InOut<poplar::Vector<unsigned, ONE_PTR, 8>>;

inline Lanes loadLanes(const float *from) { return load<Lanes>(from); }
inline Lanes loadLanes(const half *from) { return load<Lanes>(from); }
inline void storeLanes(float *to, const Lanes &lanes) { store(to, lanes); }

// Dot product of fp16 vectors, n a multiple of 8: component c in lane c mod 8, ascending, then the
// tree.
inline float dot(const half *a, const half *b, unsigned n) {
  Lanes sum{};
  for (unsigned c = 0; c != n; c += nLanes)
    sum += loadLanes(a + c) * loadLanes(b + c);
  return treeSum(sum);
}

// fp32 to fp16: clamp, then nearest even. The clamp makes overflow saturate whatever the target's
// default is.
inline half narrow(float x) {
  const float clamped = x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
  return static_cast<half>(clamped);
}

constexpr float lowest = -3.402823466e+38f, highest = 3.402823466e+38f;

// The largest of six workers' results, `stride` apart.
inline float largestOfSix(const float *partial, unsigned stride) {
  float largest = partial[0];
  for (unsigned i = 1; i != 6; ++i)
    largest = partial[i * stride] > largest ? partial[i * stride] : largest;
  return largest;
}

inline unsigned minimum(unsigned a, unsigned b) { return a < b ? a : b; }

} // namespace sparq
