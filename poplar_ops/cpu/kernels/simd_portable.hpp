// SPDX-License-Identifier: Apache-2.0
//
// Vectors of four lanes in the compiler's own vector types: SSE2 on any x86-64, NEON on aarch64,
// plain code elsewhere. Included by portable.cpp inside its namespace.
#pragma once

#include "vectors.hpp"

using Vec = float __attribute__((vector_size(16)));
using BitsVec = unsigned __attribute__((vector_size(16)));
using IntVec = int __attribute__((vector_size(16)));
using HalfVec = Half __attribute__((vector_size(8)));
constexpr unsigned severalVectors = 2; // that the softmax computes with side by side
constexpr unsigned width = 4;

inline Vec load(const float *from) {
  Vec x;
  __builtin_memcpy(&x, from, sizeof(x));
  return x;
}
inline void store(float *to, Vec x) { __builtin_memcpy(to, &x, sizeof(x)); }
inline Vec broadcast(float x) { return Vec{x, x, x, x}; }
inline Vec maximum(Vec a, Vec b) { return a > b ? a : b; }
inline Vec squareRoot(Vec x) {
  return Vec{__builtin_sqrtf(x[0]), __builtin_sqrtf(x[1]), __builtin_sqrtf(x[2]),
             __builtin_sqrtf(x[3])};
}
inline float largestOf(Vec x) {
  const float a = x[0] > x[1] ? x[0] : x[1], b = x[2] > x[3] ? x[2] : x[3];
  return a > b ? a : b;
}
inline int sumOf(IntVec x) { return x[0] + x[1] + x[2] + x[3]; }

// Widening by integer operations, exact for every finite number. No step has a denormal fp32
// operand, so the result does not depend on whether the calling thread flushes them.
inline Vec loadHalf(const Half *from) {
  HalfVec half;
  __builtin_memcpy(&half, from, sizeof(half));
  const BitsVec bits = __builtin_convertvector(half, BitsVec);
  const BitsVec magnitude = (bits & 0x7FFFu) << 13; // fp32 fields, exponent still biased by 15
  const BitsVec normal = magnitude + (112u << 23);
  const Vec smallest = broadcast(0x1p-14f);
  const Vec denormal = bitcast<Vec>(magnitude + bitcast<BitsVec>(smallest)) - smallest;
  const IntVec isDenormal = magnitude < (1u << 23);
  const BitsVec finite = (bitcast<BitsVec>(isDenormal) & bitcast<BitsVec>(denormal)) |
                         (~bitcast<BitsVec>(isDenormal) & normal);
  return bitcast<Vec>(finite | (bits & 0x8000u) << 16);
}

inline Vec loadBytes(const unsigned char *from) { // signed ones
  signed char code[width];
  __builtin_memcpy(code, from, width);
  return Vec{float(code[0]), float(code[1]), float(code[2]), float(code[3])};
}

// Nearest, ties to even; |x| <= 65504.
inline Half narrowOne(float x) {
  const unsigned bits = bitcast<unsigned>(x), sign = (bits >> 16) & 0x8000u;
  const unsigned magnitude = bits & 0x7FFFFFFFu;
  unsigned half;
  if (magnitude < 0x38800000u) // below 2^-14: a denormal fp16, a multiple of 2^-24, which is the
                               // ulp of [0.5, 1)
    half = bitcast<unsigned>(bitcast<float>(magnitude) + 0.5f) - 0x3F000000u;
  else
    half = (magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  return static_cast<Half>(sign | half);
}
inline void storeHalf(Half *to, Vec x) {
  for (unsigned j = 0; j < width; ++j)
    to[j] = narrowOne(x[j]);
}
inline Vec addExactProduct(Vec a, Vec b, Vec c) { return a * b + c; }

// Eight lanes in two vectors.
struct Lanes {
  Vec low, high;
  float operator[](unsigned j) const { return j < 4 ? low[j] : high[j - 4]; }
};
inline Lanes operator+(Lanes a, Lanes b) { return {a.low + b.low, a.high + b.high}; }
inline Lanes loadLanes(const float *from) { return {load(from), load(from + 4)}; }
inline void storeLanes(float *to, Lanes x) {
  store(to, x.low);
  store(to + 4, x.high);
}
template <class Row> inline Lanes lanesOf(const Row &row, unsigned c) {
  return {row.vec(c), row.vec(c + 4)};
}
inline Lanes addExactProduct(Lanes a, Lanes b, Lanes c) {
  return {a.low * b.low + c.low, a.high * b.high + c.high};
}
// Numbers of a list that addToLanes takes at a time.
constexpr unsigned lanesStep = 8;
inline Lanes addToLanes(Lanes sum, const Vec *x) { return {sum.low + x[0], sum.high + x[1]}; }
inline void treeSums(const Lanes lanes[4], float *to) {
  for (unsigned j = 0; j < 4; ++j)
    to[j] = treeSum(lanes[j]);
}
// Lanes with the same largest number.
inline Lanes largestLanes(Vec x) { return {x, x}; }
inline void largestOfFour(const Lanes lanes[4], float *to) {
  for (unsigned j = 0; j < 4; ++j)
    to[j] = largestOf(lanes[j].low);
}

// Bit j: x[j] >= threshold, of 16 numbers.
inline unsigned atLeast(const std::int32_t *x, std::int32_t threshold) {
  int any = 0;
  for (unsigned j = 0; j < 16; ++j)
    any |= x[j] >= threshold;
  if (!any)
    return 0;
  unsigned mask = 0;
  for (unsigned j = 0; j < 16; ++j)
    mask |= static_cast<unsigned>(x[j] >= threshold) << j;
  return mask;
}
