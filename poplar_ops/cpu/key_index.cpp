// SPDX-License-Identifier: Apache-2.0
#include "key_index.hpp"

#include "arith/arith.hpp"
#include "key_cells.hpp"

#include <algorithm>
#include <cstring>

#ifdef SPARQ_X86
#include <emmintrin.h>
#endif

namespace sparq::cpu {
namespace {

// Columns are apart by a multiple of 128 bytes that is no multiple of 4096, or the columns read
// together would compete for the same lines of the cache.
std::size_t strideOfColumns(std::size_t capacity) {
  const std::size_t padded = roundUp(capacity, 64);
  return padded % 2048 == 0 ? padded + 64 : padded;
}

// 8 rows of 8 components -> 8 columns of 8 positions.
void transpose8(const Half *rows, std::size_t rowStride, Half *columns, std::size_t columnStride) {
#ifdef SPARQ_X86
  __m128i r[8], s[8];
  for (unsigned i = 0; i < 8; ++i)
    r[i] = _mm_loadu_si128(reinterpret_cast<const __m128i *>(rows + i * rowStride));
  // Interleaving row i with row i + 4, three times, is a transposition.
  for (unsigned step = 0; step < 3; ++step) {
    for (unsigned i = 0; i < 4; ++i) {
      s[2 * i] = _mm_unpacklo_epi16(r[i], r[i + 4]);
      s[2 * i + 1] = _mm_unpackhi_epi16(r[i], r[i + 4]);
    }
    for (unsigned i = 0; i < 8; ++i)
      r[i] = s[i];
  }
  for (unsigned i = 0; i < 8; ++i)
    _mm_storeu_si128(reinterpret_cast<__m128i *>(columns + i * columnStride), r[i]);
#else
  for (unsigned i = 0; i < 8; ++i)
    for (unsigned j = 0; j < 8; ++j)
      columns[i * columnStride + j] = rows[j * rowStride + i];
#endif
}

// Rows [begin, end) of K (, headDim) to the columns (headDim, columnStride).
void writeColumns(const Half *rows, std::size_t headDim, Half *columns, std::size_t columnStride,
                  std::size_t begin, std::size_t end) {
  for (std::size_t p = begin; p < end;) {
    const bool whole = p % 8 == 0 && p + 8 <= end;
    if (!whole) {
      const Half *row = rows + p * headDim;
      for (std::size_t c = 0; c < headDim; ++c)
        columns[c * columnStride + p] = row[c];
      ++p;
      continue;
    }
    const std::size_t line = p / linePositions * linePositions + linePositions;
    const std::size_t stop = line < end ? line : end / 8 * 8;
    for (std::size_t c = 0; c < headDim; c += 8)
      for (std::size_t at = p; at < stop; at += 8)
        transpose8(rows + at * headDim + c, headDim, columns + c * columnStride + at, columnStride);
    p = stop;
  }
}

} // namespace

KeyIndex::KeyIndex(const CacheSpec &spec, const Kernels &kernelsIn)
    : quantised(spec.indexBits != 16),
      columnStride(quantised ? blockSize : strideOfColumns(spec.capacity)), kernels(kernelsIn),
      bits(spec.indexBits), headDim(spec.headDim),
      blocks(quantised ? spec.capacity / blockSize : 0),
      cellBytes(CellLayout{bits, headDim, blocks}.bytes()),
      columnMemory(product({spec.nTasks(), headDim, columnStride, sizeof(Half)})),
      cellMemory(product({spec.nTasks(), cellBytes})) {}

void KeyIndex::append(std::size_t at, const Half *rows, std::size_t begin, std::size_t end) const {
  const std::size_t block = begin / blockSize, start = block * blockSize;
  if (quantised && end == start + blockSize)
    kernels.quantiseBlock({rows, headDim, cells(at), block});
  else
    writeColumns(rows, headDim, columns(at) + (quantised ? 0 : start), columnStride, begin - start,
                 end - start);
}

void KeyIndex::copy(std::size_t from, std::size_t to, std::size_t length) const {
  const std::size_t nColumn = quantised ? length % blockSize : length;
  for (std::size_t c = 0; c < headDim; ++c)
    std::memcpy(columns(to) + c * columnStride, columns(from) + c * columnStride,
                nColumn * sizeof(Half));
  const CellLayout layout{bits, headDim, blocks};
  const std::size_t used = quantised ? (length / blockSize + cellBlocks - 1) / cellBlocks : 0;
  for (std::size_t first = 0; first < used; first += cellsTogether) {
    const std::size_t last = std::min(used, first + cellsTogether) - 1;
    const std::size_t n = layout.cellAt(0, last) + layout.cellBytes(last) - layout.cellAt(0, first);
    for (std::size_t c = 0; c < headDim; ++c)
      std::memcpy(cells(to).start + layout.cellAt(c, first),
                  cells(from).start + layout.cellAt(c, first), n);
  }
}

} // namespace sparq::cpu
