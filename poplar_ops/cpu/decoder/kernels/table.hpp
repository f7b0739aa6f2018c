// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a decoder of one instruction set. Like kernels/table.hpp, it defines no
// function that a kernel's file could make its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparq::cpu {

// Inputs that are rounded together, and outputs whose weights are stored together
// (../few_bits_product.hpp): codes, then 64 bytes of scales.
constexpr unsigned weightGroup = 32, blockOutputs = 16;
constexpr unsigned codesBytes(unsigned bits) { return bits == 4 ? 256 : 512; }
constexpr unsigned groupBytes(unsigned bits) { return codesBytes(bits) + 64; }

// Rounds at most tileRows rows to integers.
struct RoundRows {
  const std::uint16_t *rows; // (nRows, groups, 32) numbers of bfloat16
  unsigned char *tile;       // (groups, tileBytes), out
  std::size_t groups, nRows;
  unsigned bits; // of weights
};

// Dot products of rows with weights of 4, 6 or 8 bits.
struct GroupProducts {
  const unsigned char *tiles;   // of all rows, (tiles, groups, tileBytes)
  const unsigned char *weights; // (blocks, groups, groupBytes)
  std::size_t groups, nRows;
  std::size_t blocks; // of 16 outputs
  std::size_t ahead;  // prefetch distance in weights, in bytes
  unsigned bits;
  std::uint16_t *output; // (nRows, stride) numbers of bfloat16, out
  std::size_t stride;
};

// How a decoder computes its norms.
struct RmsNorm {
  float epsilon;
  // Numbers in a vector of PyTorch, whose order of a sum depends on it: 4, 8 or 16, by its version
  // and the processor.
  unsigned lanes;
  float offset;     // of the weight
  bool roundsTwice; // also before the weight
};

// The rotary embedding of heads of one token: x * cos + rotate_half(x) * sin.
struct TurnHeads {
  std::uint16_t *heads; // (nHeads, headDim), changed
  std::size_t nHeads, headDim, dim;
  // (dim,) float where isWide, else bfloat16, which products are then rounded to before their sum.
  // The sine has the sign that its component has.
  const void *cos, *sin;
  bool isWide;
};

struct DecoderKernels {
  void (*roundRows)(const RoundRows &);
  void (*groupProducts)(const GroupProducts &);
  // Of a row of n numbers of bfloat16, in fp32. The sum is in the order of PyTorch's.
  float (*meanOfSquares)(std::size_t n, unsigned lanes, const std::uint16_t *x);
  // x / sqrt(meanOfSquares + epsilon) times weight and offset, rounded. `to` may be `from`.
  void (*rmsNorm)(const RmsNorm &norm, const std::uint16_t *weight, std::size_t n,
                  const std::uint16_t *from, std::uint16_t *to);
  void (*addRow)(std::size_t n, const std::uint16_t *x, std::uint16_t *sum);
  void (*scaleRow)(std::size_t n, float factor, std::uint16_t *x);
  // activation(gate) * up; gates: n of the gate, then n that it is multiplied with. activation: of
  // each of the 65536 numbers, in the order of their bits.
  void (*gateRow)(std::size_t n, const std::uint16_t *activation, const std::uint16_t *gates,
                  std::uint16_t *to);
  void (*turnHeads)(const TurnHeads &);
  unsigned tileRows, tileBlocks; // rows and blocks that share a pass
  std::size_t tileBytes;         // of a group of a tile
};

} // namespace sparq::cpu
