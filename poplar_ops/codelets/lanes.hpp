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

#include "arith/arith.hpp"
#include <poplar/Vertex.hpp>
#ifndef __IPU__
#include <poplar/HalfFloat.hpp>
#endif

#include "loads.hpp" // after what declares half

namespace sparq {

typedef float Lanes __attribute__((vector_size(32)));
typedef unsigned LaneBits __attribute__((vector_size(32)));
// Four lanes, for work too small to fill eight at a time on six workers.
typedef float Quad __attribute__((vector_size(16)));
typedef unsigned QuadBits __attribute__((vector_size(16)));
constexpr unsigned quadSize = 4;
typedef float Pair __attribute__((vector_size(8)));
constexpr unsigned pairSize = 2;
typedef unsigned PairBits __attribute__((vector_size(8)));
template <> struct BitsOf<Pair> {
  using type = PairBits;
};
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

// The pairs of a vector.
template <class V> struct PairsOf {
  Pair of[sizeof(V) / sizeof(Pair)];
};
template <class V> inline PairsOf<V> pairsOf(const V &vector) {
  return bitcast<PairsOf<V>>(vector);
}

// The tree of a lane sum (contract E3), two of its additions at a time.
inline float treeSum(const Lanes &lanes) {
  const PairsOf<Lanes> pairs = pairsOf(lanes);
  const Pair sum = (pairs.of[0] + pairs.of[2]) + (pairs.of[1] + pairs.of[3]);
  return sum[0] + sum[1];
}

// Dot product of fp16 vectors, n a multiple of 8: component c in lane c mod 8, ascending, then the
// tree.
inline float dot(const half *a, const half *b, unsigned n) {
  Lanes sum{};
  for (unsigned c = 0; c != n; c += nLanes)
    sum += loadLanes(a + c) * loadLanes(b + c);
  return treeSum(sum);
}

// The largest number of a vector of them.
inline float largestOf(const Pair &pair) { return larger(pair[0], pair[1]); }
inline float largestOf(const Quad &quad) {
  const PairsOf<Quad> pairs = pairsOf(quad);
  return largestOf(larger(pairs.of[0], pairs.of[1]));
}

// fp32 to fp16: clamp, then nearest even. The clamp makes overflow saturate whatever the target's
// default is.
template <class V> inline V clamped(const V &x) {
  return smaller(larger(x, V{} - 65504.0f), V{} + 65504.0f);
}
inline half narrow(float x) { return static_cast<half>(clamped(x)); }
template <class V> inline void storeNarrow(half *to, const V &lanes) { store(to, clamped(lanes)); }

constexpr float lowest = -3.402823466e+38f, highest = 3.402823466e+38f;

// The largest of six workers' results, `stride` apart.
inline float largestOfSix(const float *partial, unsigned stride) {
  float largest = partial[0];
  for (unsigned i = 1; i != 6; ++i)
    largest = larger(partial[i * stride], largest);
  return largest;
}

inline unsigned minimum(unsigned a, unsigned b) { return a < b ? a : b; }

} // namespace sparq
