// SPDX-License-Identifier: Apache-2.0
//
// Where the key index of one pair (batch element, KV head) has its numbers, for 8, 4 and 2
// bits (contract E9).
//
// Sixteen blocks of 64 positions of one component are a cell:
//
//   codes of the blocks | 16 steps, fp16 | 16 lows, fp16
//
// (1088 bytes for 8 bits, 576 for 4, 320 for 2),
//
// so that one vector over the blocks prepares the score of a cell. Sixteen cells of a component
// follow one another: long runs are what memory is read quickest in. The runs of all components of
// these 16384 positions are a group, and groups follow one another. At the end of the capacity a
// group has fewer cells, and a cell fewer blocks.
//
// Codes of a block are in the order in which interleaving those of several components, first by
// bytes and then in pairs, leaves consecutive positions in a vector (kernels/dot_codes_x86.hpp):
//
//   8 bits: byte 16 L + 4 r + i                                   position 16 r + 4 L + i
//   4 bits: byte 16 L + 4 r + i, half n (0: the low four bits)    position (2 r + n) * 8 + 4 L + i
//   2 bits: byte 4 r + i, quarter n (0: the low two bits)         position (4 r + n) * 4 + i
//
// Like arith.hpp, kernels include this inside an unnamed namespace.
#pragma once

#include "arith/arith.hpp"

namespace sparq {

constexpr unsigned cellBlocks = 16;
constexpr unsigned cellsTogether = 16;

// Codes of a byte, and the position of code n of byte 16 L + 4 r; those of the next bytes follow.
constexpr unsigned codesOfByte(unsigned bits) { return 8 / bits; }
constexpr unsigned firstPosition(unsigned bits, unsigned L, unsigned r, unsigned n) {
  return ((codesOfByte(bits) * r + n) * (4 / codesOfByte(bits)) + L) * 4;
}

struct CellLayout {
  unsigned bits, nComponents;
  std::size_t blocks; // that the capacity has room for

  constexpr std::size_t blockBytes() const { return blockSize * bits / 8; }
  std::size_t nCells() const { return (blocks + cellBlocks - 1) / cellBlocks; }
  // Blocks of a cell.
  std::size_t blocksOf(std::size_t cell) const {
    const std::size_t left = blocks - cell * cellBlocks;
    return left < cellBlocks ? left : cellBlocks;
  }
  // Where in a cell its steps are; its lows follow.
  std::size_t stepsAt(std::size_t cell) const { return blocksOf(cell) * blockBytes(); }
  constexpr std::size_t wholeCellBytes() const { return cellBlocks * (blockBytes() + 4); }
  // Whole lines of the processor's caches.
  std::size_t cellBytes(std::size_t cell) const {
    return (stepsAt(cell) + cellBlocks * 4 + 63) / 64 * 64;
  }
  // From one component to the next.
  std::size_t rowBytes(std::size_t group) const {
    const std::size_t last = nCells() - 1;
    return group < last / cellsTogether ? cellsTogether * wholeCellBytes()
                                        : last % cellsTogether * wholeCellBytes() + cellBytes(last);
  }
  std::size_t groupBytes() const { return nComponents * cellsTogether * wholeCellBytes(); }
  // From the start of the index to a cell of a component.
  std::size_t cellAt(std::size_t component, std::size_t cell) const {
    const std::size_t group = cell / cellsTogether;
    return group * groupBytes() + component * rowBytes(group) +
           cell % cellsTogether * wholeCellBytes();
  }
  std::size_t bytes() const {
    if (blocks == 0)
      return 0;
    const std::size_t group = (nCells() - 1) / cellsTogether;
    return group * groupBytes() + nComponents * rowBytes(group);
  }
};

} // namespace sparq
