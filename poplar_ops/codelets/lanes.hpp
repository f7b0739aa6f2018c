// SPDX-License-Identifier: Apache-2.0
//
// Eight fp32 lanes, the unit in which the contract orders its sums (docs/exactness.md E3), and the
// loads that fill them from fp16. On an IPU a Lanes is four float2 pairs; elsewhere whatever SIMD
// the compiler has. This is the only file with a branch on the target.
#pragma once

#include "arith.hpp"
#include <poplar/Vertex.hpp>
#ifndef __IPU__
#include <poplar/HalfFloat.hpp>
#endif

namespace sparq {

typedef float Lanes __attribute__((vector_size(32)));
typedef unsigned LaneBits __attribute__((vector_size(32)));
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

inline Lanes loadLanes(const float *from) {
  Lanes lanes;
  __builtin_memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

inline void storeLanes(float *to, const Lanes &lanes) {
  __builtin_memcpy(to, &lanes, sizeof(lanes));
}

// Eight consecutive fp16 values, widened (exact).
inline Lanes loadLanes(const half *from) {
#ifdef __IPU__
  typedef half Halves __attribute__((vector_size(16), aligned(8)));
  return __builtin_convertvector(*reinterpret_cast<const Halves *>(from), Lanes);
#else
  float wide[nLanes];
  for (unsigned i = 0; i != nLanes; ++i)
    wide[i] = static_cast<float>(from[i]);
  return loadLanes(wide);
#endif
}

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

inline float magnitude(float x) { return bitcast<float>(bitcast<unsigned>(x) & 0x7fffffffu); }

inline unsigned minimum(unsigned a, unsigned b) { return a < b ? a : b; }

} // namespace sparq
