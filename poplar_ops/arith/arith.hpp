// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of the exactness contract (docs/exactness.md): exp, softmax weight, square root,
// flush, the tree of a lane sum.
//
// One text for every kernel: device vertices, the emulator's build of them, and the CPU kernels.
// Every function is a template over V, which is float, a GCC/Clang vector of float
// (`__attribute__((vector_size(...)))`) of any width, or what computes alike: each lane computes
// what the scalar form computes, bit for bit. Compile without contraction; nothing here calls a
// maths library.
#pragma once

#include "masks.hpp"

namespace sparq {

// Below this argument a softmax weight is 0 (contract E2: keeps every later product clear of the
// fp32 denormals).
constexpr float minSoftmaxArgument = -54.0f;
// Magnitudes below this become +0 before a division or as alpha (contract E2).
constexpr float flushThreshold = 0x1p-48f;
// Positions are summed in blocks of this many (contract E3).
constexpr unsigned blockSize = 64;
// Lanes of a lane sum (contract E3).
constexpr unsigned nLanes = 8;

// exp(x) for x in [-87, 0]. Contract E5: error at most 1.05 ulp, monotone, exactly 1 at 0, never
// denormal.
template <class V> inline V expNonPositive(V x) {
  // exp rounds to 1 above -2^-25, and so r * r below can not underflow.
  x = zeroAbove(x, -0x1p-25f, x);
  const V t = x * 0x1.715476p+0f + 0x1.8p+23f; // round(x / ln 2) in the low bits of t
  const V n = t - 0x1.8p+23f;
  const V r =
      (x - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f; // ln 2 in two parts; n * (first part) is exact
  V p = r * 0x1.6d4352p-10f + 0x1.120b96p-7f;
  p = p * r + 0x1.5554e8p-5f;
  p = p * r + 0x1.5554dcp-3f;
  p = p * r + 0.5f;
  return timesPowerOfTwo(1.0f + (r + (r * r) * p), t);
}

// exp(x) for x <= 0, cut to 0 below minSoftmaxArgument.
template <class V> inline V softmaxWeight(V x) {
  // Any argument that exp takes does where the weight is 0 anyway; 0 is the cheapest.
  return zeroBelow(x, minSoftmaxArgument, expNonPositive(zeroBelow(x, minSoftmaxArgument, x)));
}

// sqrt(t) for t in [2^-60, 2^60] by a guess and three Heron steps. Contract E4: error below 0.76
// ulp.
inline float squareRoot(float t) {
  float x = bitcast<float>((bitcast<unsigned>(t) >> 1) + 0x1FBB4F2Eu);
  x = 0.5f * (x + t / x);
  x = 0.5f * (x + t / x);
  x = 0.5f * (x + t / x);
  return x;
}

// Without its sign.
template <class V> inline V withoutSign(const V &x) {
  using Bits = typename BitsOf<V>::type;
  return keepBits(x, bitcast<V>(Bits{} + 0x7fffffffu));
}

// x, or +0 where |x| < 2^-48.
template <class V> inline V flush(const V &x) {
  return zeroBelow(withoutSign(x), flushThreshold, x);
}

// The eight lanes of a lane sum to one number: (0+4, 1+5, 2+6, 3+7), (0+2, 1+3), (0+1).
template <class Lanes> inline float treeSum(const Lanes &lane) {
  const float a = lane[0] + lane[4], b = lane[1] + lane[5];
  const float c = lane[2] + lane[6], d = lane[3] + lane[7];
  return (a + c) + (b + d);
}

// inv_tau = sqrt(all / (head_dim * selected)), or scale where no selected component is nonzero
// (contract E4).
inline float inverseTemperature(float all, float selected, float headDim, float scale) {
  return selected == 0.0f ? scale : squareRoot(all / (headDim * selected));
}

} // namespace sparq
