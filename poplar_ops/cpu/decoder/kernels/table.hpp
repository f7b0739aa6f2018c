// SPDX-License-Identifier: Apache-2.0
//
// The kernels of linear layers of one instruction set. Like kernels/table.hpp, it defines no
// function.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparq {
namespace cpu {

// Dot products of numbers of bfloat16 with codes of 8 bits (../int8_product.hpp).
struct CodeProducts {
  const float *rows;        // (nRows, inputs)
  const signed char *codes; // (outputs, inputs)
  std::size_t inputs;       // a multiple of 16
  unsigned nRows, outputs;  // outputs a multiple of 4
  std::size_t ahead;        // bytes that a line of codes is asked for before it is read
  float *sums;              // (nRows, stride) out
  std::size_t stride;
};

// Inputs that share a scale and a zero, bytes of 16 outputs of them, and rows that are multiplied
// at a time (../int4_product.hpp).
constexpr unsigned weightGroup = 32, groupBytes = 320, mostGroupRows = 32;

// 32 numbers of a row as integers, 256 * high + low, times a step.
struct RoundedGroup {
  signed char high[weightGroup], low[weightGroup];
  std::int32_t start; // -8 times the sum of the integers
  float sum;          // of the integers
  float step;
};

struct RoundGroups {
  const std::uint16_t *row; // (groups, 32) numbers of bfloat16
  RoundedGroup *to;         // (groups,), `stride` apart
  std::size_t stride, groups;
};

// Dot products of rows with weights of 4 bits.
struct GroupProducts {
  const RoundedGroup *rows;     // (groups, nRows)
  const unsigned char *weights; // (blocks, groups, 320)
  std::size_t groups;
  std::size_t nRows;     // at most mostGroupRows
  std::size_t blocks;    // of 16 outputs
  std::size_t ahead;     // bytes that a line of weights is asked for before it is read
  std::uint16_t *output; // (nRows, stride) numbers of bfloat16, out
  std::size_t stride;
};

struct ProductKernels {
  void (*codeProducts)(const CodeProducts &);
  void (*roundGroups)(const RoundGroups &);
  void (*groupProducts)(const GroupProducts &);
};

} // namespace cpu
} // namespace sparq
