// SPDX-License-Identifier: Apache-2.0
//
// Softmax before its division: weights exp(score - maximum) and the lane sum of each block of 64
// (contract E3, E5).
#pragma once

#include "vectors.hpp"

inline Vec magnitude(Vec x) { return bitcast<Vec>(bitcast<BitsVec>(x) & 0x7FFFFFFFu); }

#ifndef SPARQ_WIDE_VECTORS // else in simd_avx512.hpp
// p * 2^n, the weight of x, or 0 where x is below the least; t has n in its low bits.
inline Vec weightOf(Vec x, float least, Vec p, Vec t, Vec) {
  const Vec weight = bitcast<Vec>(bitcast<BitsVec>(p) + (bitcast<BitsVec>(t) << 23));
  return x < least ? Vec{} : weight;
}
#endif

// What softmaxWeight of arith.hpp makes of n vectors of numbers <= 0. One exponential is a chain of
// some 20 dependent operations, and a processor looks ahead over too few to overlap enough of them
// by itself; written out in turns, they fill the time. So it is written out, and without what can
// not change a bit here:
//  - arguments below minSoftmaxArgument are not replaced by it first: their result is;
//  - nor those above -2^-25 by 0: r is the argument then, and 1 + (r + ...) rounds to 1;
//  - 0x4B400000 is not subtracted from the bits of t: shifted by 23, nothing is left of it;
//  - the product that is exact may be fused with the addition (contract E1).
template <unsigned n> inline void weightsOf(Vec *x) {
  Vec t[n], whole[n], r[n], p[n], square[n];
  for (unsigned i = 0; i < n; ++i)
    t[i] = x[i] * 0x1.715476p+0f + 0x1.8p+23f;
  for (unsigned i = 0; i < n; ++i)
    whole[i] = t[i] - 0x1.8p+23f;
  for (unsigned i = 0; i < n; ++i)
    r[i] = addExactProduct(whole[i], broadcast(-0x1.63p-1f), x[i]);
  for (unsigned i = 0; i < n; ++i)
    r[i] = r[i] + whole[i] * 0x1.bd0106p-13f;
  for (unsigned i = 0; i < n; ++i)
    p[i] = r[i] * 0x1.6d4352p-10f + 0x1.120b96p-7f;
  for (unsigned i = 0; i < n; ++i)
    p[i] = p[i] * r[i] + 0x1.5554e8p-5f;
  for (unsigned i = 0; i < n; ++i)
    p[i] = p[i] * r[i] + 0x1.5554dcp-3f;
  for (unsigned i = 0; i < n; ++i)
    p[i] = p[i] * r[i] + 0.5f;
  for (unsigned i = 0; i < n; ++i)
    square[i] = r[i] * r[i];
  for (unsigned i = 0; i < n; ++i)
    p[i] = 1.0f + (r[i] + square[i] * p[i]);
  for (unsigned i = 0; i < n; ++i)
    x[i] = weightOf(x[i], minSoftmaxArgument, p[i], t[i], whole[i]);
}

// n vectors of scores to weights, in place and in x.
template <unsigned n> inline void softmaxVectors(float *scores, Vec maximum, Vec *x) {
  for (unsigned i = 0; i < n; ++i)
    x[i] = load(scores + i * width) - maximum;
  weightsOf<n>(x);
  for (unsigned i = 0; i < n; ++i)
    store(scores + i * width, x[i]);
}

constexpr unsigned maxVectors = 16 / width; // of the maxima of a block

// The largest of n vectors, entry by entry of the maxima of a block; the first of them has number
// `first` in the block.
template <unsigned n> inline void raiseMaxima(IntVec *largest, const Vec *x, unsigned first) {
  for (unsigned i = 0; i < n; ++i) {
    IntVec &most = largest[(first + i) % maxVectors];
    most = larger(bitcast<IntVec>(x[i]), most);
  }
}

// The sums of the blocks since the last multiple of four, up to `block`.
inline void writeBlockSums(SoftmaxWeights &a, std::size_t block) {
  Lanes lanes[4];
  float sums[4];
  for (unsigned i = 0; i < 4; ++i)
    lanes[i] = loadLanes(a.lanes[i]);
  treeSums(lanes, sums);
  const std::size_t first = (block - 1) / 4 * 4;
  if (block == first + 4) {
    __builtin_memcpy(a.blockSums + first, sums, sizeof(sums));
    return;
  }
  for (std::size_t i = first; i < block; ++i)
    a.blockSums[i] = sums[i - first];
}

// The next block.
inline void softmaxBlock(SoftmaxWeights &a) {
  constexpr unsigned n = severalVectors;
  float *const at = a.scores + a.block * blockSize;
  Lanes sum{};
  IntVec largest[maxVectors] = {};
#pragma GCC unroll 8
  for (unsigned j = 0; j < blockSize / width; j += n) {
    Vec x[n];
    softmaxVectors<n>(at + j * width, broadcast(a.maximum), x);
    raiseMaxima<n>(largest, x, j);
    for (unsigned i = 0; i < n; i += lanesStep / width)
      sum = addToLanes(sum, x + i);
  }
  if (a.maxima)
    __builtin_memcpy(a.maxima + a.block * 16, largest, sizeof(largest));
  storeLanes(a.lanes[a.block % 4], sum);
  if (++a.block % 4 == 0)
    writeBlockSums(a, a.block);
}

#ifdef SPARQ_WIDE_VECTORS
// The next two blocks, the first an even one: there are registers for them, and a vector has the
// lanes of both.
inline void softmaxTwoBlocks(SoftmaxWeights &a) {
  constexpr unsigned n = blockSize / width;
  Vec x[2 * n];
  softmaxVectors<2 * n>(a.scores + a.block * blockSize, broadcast(a.maximum), x);
  if (a.maxima)
    for (unsigned block = 0; block < 2; ++block) {
      IntVec largest[maxVectors] = {};
      raiseMaxima<n>(largest, x + block * n, 0);
      __builtin_memcpy(a.maxima + (a.block + block) * 16, largest, sizeof(largest));
    }
  Vec sum{};
  for (unsigned i = 0; i < n; ++i)
    sum = addToTwoLanes(sum, x[i], x[n + i]);
  store(a.lanes[a.block % 4], sum);
  a.block += 2;
  if (a.block % 4 == 0)
    writeBlockSums(a, a.block);
}
#endif

// Blocks up to `end`.
inline void softmaxUntil(SoftmaxWeights &a, std::size_t end) {
  const std::size_t blocks = a.n / blockSize;
  if (a.block == blocks)
    return;
  if (end > blocks)
    end = blocks;
  while (a.block < end) {
#ifdef SPARQ_WIDE_VECTORS
    if (a.block % 2 == 0 && a.block + 2 <= end) {
      softmaxTwoBlocks(a);
      continue;
    }
#endif
    softmaxBlock(a);
  }
  if (a.block == blocks && blocks % 4)
    writeBlockSums(a, blocks);
}

inline void softmaxWeights(SoftmaxWeights &a) { softmaxUntil(a, a.n / blockSize); }
