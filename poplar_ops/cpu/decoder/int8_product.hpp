// SPDX-License-Identifier: Apache-2.0
//
// The product of a linear layer whose weights have 8 bits, at the memory's pace: a step of one
// token reads every code once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace sparq {
namespace cpu {

// Contiguous arrays; numbers are bits of bfloat16.
struct Int8Product {
  const std::uint16_t *rows;  // (nRows, inputs)
  const signed char *codes;   // (outputs, inputs)
  const std::uint16_t *scale; // (outputs,)
  std::uint16_t *output;      // (nRows, outputs)
  std::size_t nRows, inputs, outputs;
};

// output = the sum of row * code, times the scale, rounded to bfloat16. The sum is in fp32: sixteen
// lanes over the inputs, lane j + 8 added to lane j, then the tree of a lane sum (contract E3). So
// a row has the same bits with any others, any threads and any instruction set.
//
// Throws Error: inputs no multiple of 16, outputs none of 4, nThreads or isa as in KVCache.
void multiplyInt8(const Int8Product &product, std::int64_t nThreads, const std::string &isa);

} // namespace cpu
} // namespace sparq
