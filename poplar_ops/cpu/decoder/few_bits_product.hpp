// SPDX-License-Identifier: Apache-2.0
//
// The product of a linear layer whose weights have 4 or 8 bits (contract E15). One row is bound by
// memory bandwidth: every code is read once. Many rows are bound by the multipliers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace sparq::cpu {

// Contiguous arrays; numbers are bits of bfloat16. Weights of 16 outputs and 32 inputs, a group,
// are 320 bytes together with 4 bits, and 512 with 8.
//
// 4 bits: weight = scale * (code - 8) + zero, with a scale and a zero for each output and group
//   byte 64 i + 4 o + b, i < 4, b < 4: of output o, the code of input 4 i + b in the lower half,
//   that of 16 + 4 i + b in the upper; byte 256 + 4 o: the scale of output o, then its zero
// 8 bits: weight = scale * (code - 128), with a scale for each output
//   byte 64 i + 4 o + b, i < 8, b < 4: of output o, the code of input 4 i + b
struct FewBitsProduct {
  const std::uint16_t *rows;    // (nRows, inputs)
  const unsigned char *weights; // (outputs / 16, inputs / 32, 320 or 512)
  const std::uint16_t *scale;   // (outputs,) of 8 bits; null: weights have 4
  std::uint16_t *output;        // (nRows, outputs)
  std::size_t nRows, inputs, outputs;
};

// Rows whose integers stay in the second cache while all weights pass.
constexpr std::size_t mostRows = 240;

// A row has the same bits with any others, any threads and any instruction set.
//
// Throws Error: inputs no multiple of 32, outputs none of 16, nThreads or isa as in KVCache.
void multiplyFewBits(const FewBitsProduct &product, std::int64_t nThreads, const std::string &isa);

} // namespace sparq::cpu
