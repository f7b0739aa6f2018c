// SPDX-License-Identifier: Apache-2.0
//
// The merit of a position, softmax summed over the heads of a group (contract E6.3): for the few
// positions that may be selected as the contract defines it, for all others roughly, without a
// division.
#pragma once

#include "vectors.hpp"

inline IntVec larger(IntVec a, IntVec b) { return a > b ? a : b; }

// A merit is +0 or more; the mask matters for NaN only, whose sign would spoil the order of bit
// patterns.
constexpr unsigned signMask = 0x7FFFFFFFu;

inline void roughKeys(const RoughKeys &a) {
  constexpr unsigned vectors = 16 / width; // of 16 positions
  const Merit &merit = a.merit;
  for (std::size_t at = a.begin; at < a.end; at += blockSize) {
    IntVec most[vectors] = {};
    for (unsigned part = 0; part < blockSize; part += 16) {
      for (unsigned v = 0; v < vectors; ++v) {
        const std::size_t p = at + part + v * width;
        Vec key{};
        for (unsigned h = 0; h < merit.groupSize; ++h)
          key = key + load(merit.weights + h * merit.weightStride + p) * broadcast(a.inverseSum[h]);
        const IntVec bits = bitcast<IntVec>(bitcast<BitsVec>(key) & signMask);
        __builtin_memcpy(a.keys + p, &bits, sizeof(bits));
        most[v] = larger(bits, most[v]);
      }
    }
    __builtin_memcpy(a.maxima + at / blockSize * 16, most, sizeof(most));
  }
}

inline void meritsAt(const Merit &a, const std::uint32_t *positions, std::size_t n,
                     std::int32_t *keys) {
  for (std::size_t i = 0; i < n; i += width) {
    const std::size_t left = n - i, some = left < width ? left : width;
    Vec key{};
    for (unsigned h = 0; h < a.groupSize; ++h) {
      float weight[width] = {};
      for (std::size_t j = 0; j < some; ++j)
        weight[j] = a.weights[h * a.weightStride + positions[i + j]];
      key = key + load(weight) / broadcast(a.weightSum[h]);
    }
    const IntVec bits = bitcast<IntVec>(bitcast<BitsVec>(key) & signMask);
    __builtin_memcpy(keys + i, &bits, some * sizeof(std::int32_t));
  }
}
