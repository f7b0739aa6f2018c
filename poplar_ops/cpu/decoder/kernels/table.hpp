// SPDX-License-Identifier: Apache-2.0
//
// The kernels of linear layers of one instruction set. Like kernels/table.hpp, it defines no
// function that a kernel's file could make its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparq::cpu {

// Inputs that share a scale and a zero, and outputs whose weights are stored together
// (../few_bits_product.hpp).
constexpr unsigned weightGroup = 32, blockOutputs = 16;
constexpr unsigned groupBytes(unsigned bits) { return bits == 8 ? 512 : 320; }

// Rounds at most tileRows rows to integers.
struct RoundRows {
  const std::uint16_t *rows; // (nRows, groups, 32) numbers of bfloat16
  unsigned char *tile;       // (groups, tileBytes), out
  std::size_t groups, nRows;
  unsigned bits; // of weights
};

// Dot products of rows with weights of 4 or 8 bits.
struct GroupProducts {
  const unsigned char *tiles;   // of all rows, (tiles, groups, tileBytes)
  const unsigned char *weights; // (blocks, groups, groupBytes)
  std::size_t groups, nRows;
  std::size_t blocks;         // of 16 outputs
  std::size_t ahead;          // prefetch distance in weights, in bytes
  const std::uint16_t *scale; // (16 * blocks,) of 8 bits; null: weights have 4
  std::uint16_t *output;      // (nRows, stride) numbers of bfloat16, out
  std::size_t stride;
};

struct ProductKernels {
  void (*roundRows)(const RoundRows &);
  void (*groupProducts)(const GroupProducts &);
  unsigned tileRows, tileBlocks; // rows and blocks that share a pass
  std::size_t tileBytes;         // of a group of a tile
};

} // namespace sparq::cpu
