// SPDX-License-Identifier: Apache-2.0
//
// A decode step of one layer, from its queries, keys and values to the output of its attention: the
// rotary embedding, rounding to fp16, append and attention in one call.
#pragma once

#include "floats.hpp"
#include "kv_cache.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sparq {
namespace cpu {

struct Rotary {
  Float type; // of cos and sin
  // (rows, dim), contiguous: rows is the batch, or 1 for all of it. The sine has the sign that its
  // component of rotate_half has. Components of a head from dim on are not rotated.
  const void *cos, *sin;
  std::size_t rows, dim;
  std::size_t nHeads; // of a query
  float factor;       // of the scores, beside 1 / sqrt(headDim)
};

// Arrays of that type, contiguous.
struct RotaryStep {
  Float type;
  const void *products; // (batch, nHeads + 2 * nKvHeads, headDim): queries, keys, values
  Rotary rotary;
  void *output; // (batch, nHeads, headDim)
};

// Queries and keys become x * cos + rotate_half(x) * sin. The products are rounded to the type of
// the rotary embedding and the sum to that of x, as PyTorch does. Then queries are multiplied by
// the factor, all is rounded to fp16, the tokens are appended and attended to, densely if settings
// is null.
//
// Returns the lengths after it. Empty, and nothing has happened, where fp16 can not hold a number.
// Throws Error as `append` and `attention` do.
std::vector<std::int64_t> attendRotary(KVCache &cache, const RotaryStep &step,
                                       const SparqSettings *settings);

} // namespace cpu
} // namespace sparq
