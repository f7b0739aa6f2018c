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

namespace sparq::cpu {

struct Rotary {
  Float type; // of cos and sin
  // (rows, dim), contiguous. The sine has the sign that its component of rotate_half has.
  // Components of a head from dim on are not rotated.
  const void *cos, *sin;
  std::size_t rows, dim;
  std::size_t nHeads; // of a query
  float factor;       // of the scores, beside 1 / sqrt(headDim)
};

// Rows of a step that attend together: nTokens of each batch element of a cache, those of one token
// after those of the token before.
struct Wave {
  KVCache *cache;
  const SparqSettings *settings; // of one token; null: dense
  std::size_t window;            // as of KVCache::attention
  std::size_t nTokens;
  std::size_t nRows() const { return cache->batch * nTokens; }
};

// Arrays of that type, contiguous. The rows are those of all waves, one after the other. A later
// wave may have the next tokens of the same texts.
struct RotaryStep {
  Float type;
  const void *products; // (rows, nHeads + 2 * nKvHeads, headDim): queries, keys, values
  Rotary rotary;        // its rows are these, or one for all
  void *output;         // (rows, nHeads, headDim)
};

// Queries and keys become x * cos + rotate_half(x) * sin. The products are rounded to the type of
// the rotary embedding and the sum to that of x, as PyTorch does. Then queries are multiplied by
// the factor, all is rounded to fp16, the tokens are appended and attended to.
//
// Returns the lengths after it, of each row. Empty, and nothing has happened, where fp16 can not
// hold a number. Throws Error as `append` and `attention` do; then too nothing has happened.
std::vector<std::int64_t> attendRotary(const std::vector<Wave> &waves, const RotaryStep &step);

} // namespace sparq::cpu
