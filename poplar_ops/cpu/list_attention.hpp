// SPDX-License-Identifier: Apache-2.0
//
// Attention of one pair over a list of positions (contract E6.4), and the end of every attention.
#pragma once

#include "call.hpp"

namespace sparq::cpu {

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

  void attend(const Call &call, const KVCache::Pair &pair, const float *query) const;
};

// A left fold (contract E3).
float foldBlocks(const float *partial, std::size_t n);

// The output of head h of a pair, from its weighted sum of values y: divided, mixed with the mean
// value where there is an alpha (contract E6.5), narrowed.
void writeOutput(const Call &call, std::size_t pair, unsigned h, float *y, float weightSum,
                 const float *alpha = nullptr);

} // namespace sparq::cpu
