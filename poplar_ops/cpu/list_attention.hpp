// SPDX-License-Identifier: Apache-2.0
//
// Attention of one pair over a list of positions (contract E6.4), and the end of every attention.
#pragma once

#include "arith/arith.hpp"
#include "call.hpp"

#include <cstring>

namespace sparq::cpu {

// A left fold (contract E3).
inline float foldBlocks(const float *partial, std::size_t n) {
  float total = 0.0f;
  for (std::size_t i = 0; i < n; ++i)
    total = total + partial[i];
  return total;
}

struct ListAttention {
  const std::uint32_t *positions; // (count,) ascending
  std::size_t count;
  float *weights; // (g, stride) out: not divided
  std::size_t stride;
  float *maxima;    // (g,)
  float *blockSums; // one for each 64 of the list
  float *sums;      // (g,) out: of weights
  float *values;    // (g, headDim) out: weighted sums
  float *factors;   // of `Rows`

  void attend(const Call &call, const KVCache::Pair &pair, const float *query) const {
    const auto g = static_cast<unsigned>(call.groupSize);
    const auto d = static_cast<unsigned>(call.cache.headDim);
    const std::size_t padded = roundUp(count, blockSize);
    const auto listed = [&](const unsigned char *rows) -> Rows {
      return {rows, d, positions, 0, count, 0, factors};
    };
    call.kernels.rowScores(
        {listed(pair.keyRows), query, g, attentionScale(d), weights, stride, maxima});
    for (unsigned h = 0; h < g; ++h) {
      SoftmaxWeights step{weights + h * stride, padded, maxima[h], blockSums, nullptr};
      call.kernels.softmaxWeights(step);
      sums[h] = foldBlocks(blockSums, padded / blockSize);
    }
    std::memset(values, 0, g * d * sizeof(float));
    call.kernels.weightedValues({listed(pair.valueRows), weights, stride, g, values, true});
  }
};

// The output of head h of a pair, from its weighted sum of values y: divided, mixed with the mean
// value where there is an alpha (contract E6.5), narrowed.
inline void writeOutput(const Call &call, std::size_t pair, unsigned h, float *y, float weightSum,
                        const float *alpha = nullptr) {
  const auto d = static_cast<unsigned>(call.cache.headDim);
  for (unsigned c = 0; c < d; ++c)
    y[c] = flush(y[c]) / weightSum;
  if (alpha) {
    const KVCache::Pair own = call.cache.pair(pair);
    const float rest = 1.0f - *alpha, n = static_cast<float>(own.length);
    for (unsigned c = 0; c < d; ++c)
      y[c] = *alpha * y[c] + rest * (own.valueSum[c] / n);
  }
  call.kernels.narrow(y, call.output + (pair * call.groupSize + h) * d, d);
}

} // namespace sparq::cpu
