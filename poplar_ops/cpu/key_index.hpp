// SPDX-License-Identifier: Apache-2.0
//
// What approximate scores are computed from, for all pairs (batch element, KV head) of a cache: the
// keys once more by component, in fp16 ("key columns") or quantised to 8, 4 or 2 bits (contract
// E9).
//
// A quantised index holds the full blocks of 64 positions. The open block, which has fewer, is in
// fp16 columns until its 64th position arrives.
#pragma once

#include "buffer.hpp"
#include "kernels/table.hpp"
#include "sparq/settings.hpp"

namespace sparq::cpu {

// Positions that are written to the columns together: one cache line.
constexpr std::size_t linePositions = 32;

class KeyIndex {
public:
  // Throws std::bad_alloc.
  KeyIndex(const CacheSpec &spec, const Kernels &kernels);

  const bool quantised;           // fewer than 16 bits
  const std::size_t columnStride; // positions from one column to the next

  // Of pair `at` (by bank). Columns (headDim, columnStride): of all positions, or of the open
  // block where the index is quantised.
  Half *columns(std::size_t at) const {
    return columnMemory.as<Half>() + at * headDim * columnStride;
  }
  KeyCells cells(std::size_t at) const {
    return {cellMemory.as<unsigned char>() + at * cellBytes, bits, headDim, blocks};
  }

  // Positions [begin, end) are new; `rows` (, headDim) are the keys of their block of 64. Whoever
  // calls keeps pieces small, so that the rows still are in the processor's caches. A piece does
  // not cross a multiple of 64; one that fills a block of a quantised index needs all its rows.
  void append(std::size_t at, const Half *rows, std::size_t begin, std::size_t end) const;
  // Pair `to` becomes what pair `from` is, with `length` positions.
  void copy(std::size_t from, std::size_t to, std::size_t length) const;

  // Memory of one pair.
  std::size_t pairBytes() const { return headDim * columnStride * sizeof(Half) + cellBytes; }

private:
  const Kernels &kernels;
  const unsigned bits, headDim;
  const std::size_t blocks;    // full ones that the capacity has room for; quantised only
  const std::size_t cellBytes; // of one pair
  Buffer columnMemory, cellMemory;
};

} // namespace sparq::cpu
