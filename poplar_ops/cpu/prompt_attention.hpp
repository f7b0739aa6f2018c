// SPDX-License-Identifier: Apache-2.0
//
// Causal dense attention of the tokens of a prompt (contract E14). A row's result is a function of
// its own position: of its query and of the keys and values up to it. It does not depend on how a
// prompt is cut into pieces, nor on threads, other texts or the instruction set.
#pragma once

#include "floats.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sparq {
namespace cpu {

// head_dim numbers of a row side by side; bytes from one head and token to the next.
struct PromptRows {
  const char *start;
  std::ptrdiff_t head, token;
};

// The last nQueries tokens of a text, each of which attends to the positions up to its own.
struct PromptText {
  PromptRows query; // of the first of them
  PromptRows key, value;
  std::size_t nQueries, nKeys;
  char *output; // (nQueries, nHeads, headDim), of the queries' type
};

struct Prompt {
  Float type, keyType; // of queries; of keys and values
  std::size_t nHeads, nKvHeads, headDim;
  bool integers; // products of integers: as accurate as bfloat16; else of fp32
  float scale;
  std::size_t window; // most recent positions that a row sees; 0: all
  float blocks;       // share of the sum of weights below which a block is left out (E16); 0: none
  std::size_t blocksFrom = 0; // rows at positions below it read all blocks
  bool keysCoded = false;     // keys and values are rows of 8 bits
};

// Throws Error for sizes that do not fit.
void attendPrompt(const Prompt &prompt, const std::vector<PromptText> &texts,
                  const Kernels &kernels, unsigned nThreads);

} // namespace cpu
} // namespace sparq
