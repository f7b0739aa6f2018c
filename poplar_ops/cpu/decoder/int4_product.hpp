// SPDX-License-Identifier: Apache-2.0
//
// The product of a linear layer whose weights have 4 bits, at the memory's pace: a step of one
// token reads every code once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace sparq {
namespace cpu {

// Contiguous arrays; numbers are bits of bfloat16. Weights of 16 outputs and 32 inputs, a group,
// are 320 bytes together: weight = scale * (code - 8) + zero, with a scale and a zero for each
// output.
//
// byte 64 i + 4 o + b, i < 4, b < 4: of output o, the code of input 4 i + b below, that of 16 + 4 i
// + b above byte 256 + 4 o: the scale of output o, then its zero
struct Int4Product {
  const std::uint16_t *rows;    // (nRows, inputs)
  const unsigned char *weights; // (outputs / 16, inputs / 32, 320)
  std::uint16_t *output;        // (nRows, outputs)
  std::size_t nRows, inputs, outputs;
};

// Of each row, 32 numbers are rounded to integers x, times a power of two, the step. The largest of
// them, if its exponent is e, has the step 2^(e-13), but at least 2^-110: so x is exact where a
// number has at least 1/64 of the largest one's magnitude, and below 2^14. To nearest, ties to
// even. The sums of x * (code - 8) and of x are exact. In fp32, ascending by group, and rounded to
// bfloat16 at the end:
//
//   output = output + (scale * sum of x * (code - 8) + zero * sum of x) * step
//
// So a row has the same bits with any others, any threads and any instruction set. Where one of the
// 32 is not finite, the output is NaN.
//
// Throws Error: inputs no multiple of 32, outputs none of 16, nThreads or isa as in KVCache.
void multiplyInt4(const Int4Product &product, std::int64_t nThreads, const std::string &isa);

} // namespace cpu
} // namespace sparq
