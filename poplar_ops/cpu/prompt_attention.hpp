// SPDX-License-Identifier: Apache-2.0
//
// Causal dense attention of the tokens of a prompt (contract E14). A row's result is a function of
// its own position: of its query and of the keys and values up to it. It does not depend on how a
// prompt is cut into pieces, nor on threads, batch mates or the instruction set.
#pragma once

#include "floats.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sparq {
namespace cpu {

// Numbers of one type, head_dim of a row side by side.
struct PromptTensor {
  const void *start;
  std::ptrdiff_t batch, head, token; // bytes from one to the next
};

struct Prompt {
  Float type;
  PromptTensor query;      // (batch, nHeads, nQueries, headDim)
  PromptTensor key, value; // (batch, nKvHeads, nKeys, headDim)
  std::size_t batch, nHeads, nKvHeads, nQueries, nKeys, headDim;
  bool integers; // products of integers: as accurate as bfloat16; else of fp32
  float scale;
  std::size_t window; // most recent positions that a row sees; 0: all
  std::vector<std::size_t>
      starts; // tokens of padding before each batch element's text; empty: none
  void *
      output; // (batch, nQueries, nHeads, headDim), of the same type; nothing is written to padding

  std::size_t startOf(std::size_t element) const { return starts.empty() ? 0 : starts[element]; }
};

// The queries are those of the last nQueries positions. Throws Error for sizes that do not fit.
void attendPrompt(const Prompt &prompt, std::int64_t nThreads, const std::string &isa);

} // namespace cpu
} // namespace sparq
