// SPDX-License-Identifier: Apache-2.0
//
// Where a key index in planes of bits (contract E12) has its numbers, for one pair (batch element,
// KV head).
//
// As in key_cells.hpp, sixteen blocks of 64 positions of one component are a cell, and up to sixteen
// cells are a group. A component's row of a group:
//
//   scales of each cell: 16 steps, 16 lows, fp16 | plane 0 of each cell | plane 1 | ... | padding
//
// so that what a query reads of a component, its first planes, is one run. A plane of a cell is 128
// bytes: two lines of 64, each of eight blocks. Rows are an odd number of lines, or those read
// together would compete for the same lines of the processor's caches.
//
// Bits of a line are in the order in which shifts by 1, 2 and 4 make codes of them
// (kernels/planes.hpp). With X the byte that key_cells.hpp has for a code, counted over the eight
// blocks:
//
//   4 bits: bit X / 64 of byte X % 64 for the low half of X, bit X / 64 + 4 for the high half
//   8 bits: bit X / 64 of byte X % 64
//
// Like arith.hpp, kernels include this inside an unnamed namespace.
#pragma once

#include "key_cells.hpp"

namespace sparq {

struct PlaneLayout {
  unsigned bits, nComponents;
  std::size_t blocks; // that the capacity has room for

  static constexpr std::size_t line = 64, lineBlocks = 8;
  static constexpr std::size_t scaleBytes = cellBlocks * 4, planeBytes = cellBlocks * blockSize / 8;

  std::size_t nCells() const { return (blocks + cellBlocks - 1) / cellBlocks; }
  std::size_t nGroups() const { return (nCells() + cellsTogether - 1) / cellsTogether; }
  std::size_t cellsOf(std::size_t group) const {
    const std::size_t left = nCells() - group * cellsTogether;
    return left < cellsTogether ? left : cellsTogether;
  }
  // From one plane of a component to the next.
  std::size_t planeStride(std::size_t group) const { return cellsOf(group) * planeBytes; }
  // From one component to the next.
  std::size_t rowBytes(std::size_t group) const {
    return (cellsOf(group) * (scaleBytes + bits * planeBytes)) | line;
  }
  std::size_t groupBytes() const {
    return nComponents * ((cellsTogether * (scaleBytes + bits * planeBytes)) | line);
  }
  // A cell: from the start of the index to the scales of component 0 and to its first plane, and from
  // there to the next component and to the next plane.
  struct Place {
    std::size_t scales, planes, nextComponent, nextPlane;
  };
  Place place(std::size_t cell) const {
    const std::size_t group = cell / cellsTogether, inGroup = cell % cellsTogether;
    const std::size_t start = group * groupBytes();
    return {start + inGroup * scaleBytes,
            start + cellsOf(group) * scaleBytes + inGroup * planeBytes, rowBytes(group),
            planeStride(group)};
  }
  std::size_t bytes() const {
    if (blocks == 0)
      return 0;
    const std::size_t last = nGroups() - 1;
    return last * groupBytes() + nComponents * rowBytes(last);
  }
};

} // namespace sparq
