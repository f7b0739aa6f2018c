// SPDX-License-Identifier: Apache-2.0
//
// The product of a linear layer whose weights have 4, 6 or 8 bits (contract E15). One row is bound
// by memory bandwidth: every code is read once. Many rows are bound by the multipliers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace sparq::cpu {

// Arrays; numbers are bits of bfloat16. Weights of 16 outputs and 32 inputs, a group, are stored
// together: codes, and then 64 bytes of fp16.
//
// 4 bits: weight = scale * (code - 8) + zero, with a scale and a zero for each output and group
//   byte 64 i + 4 o + b, i < 4, b < 4: of output o, the code of input 4 i + b in the lower half,
//   that of 16 + 4 i + b in the upper; after these 256 bytes 16 scales, then 16 zeros
// 8 bits: weight = scale * (code - 128) + zero, in the same way
//   byte 64 i + 4 o + b, i < 8, b < 4: of output o, the code of input 4 i + b; after these 512
//   bytes 16 scales, then 16 zeros
// 6 bits, for they have no other use: weight = scale * (code - 128), in bytes as 8 bits; 16 scales
//   of the first 16 inputs, then 16 of the others
struct FewBitsProduct {
  const std::uint16_t *rows;    // (nRows, inputs)
  const unsigned char *weights; // (outputs / 16, inputs / 32, 320 or 576)
  unsigned bits;
  std::uint16_t *output; // (nRows, stride)
  std::size_t nRows, inputs, outputs, stride;
};

// Rows whose integers stay in the second cache while all weights pass.
constexpr std::size_t mostRows = 240;

// A row has the same bits with any others, any threads and any instruction set.
//
// Throws Error: inputs no multiple of 32, outputs none of 16, other bits, nThreads or isa as in
// KVCache.
void multiplyFewBits(const FewBitsProduct &product, std::int64_t nThreads, const std::string &isa);

} // namespace sparq::cpu
