// SPDX-License-Identifier: Apache-2.0
#include "key_index.hpp"

#include "arith/arith.hpp"
#include "key_cells.hpp"
#include "key_columns.hpp"

#include <algorithm>
#include <cstring>

namespace sparq::cpu {
namespace {

// Columns are apart by a multiple of 128 bytes that is no multiple of 4096, or the columns read
// together would compete for the same lines of the cache.
std::size_t strideOfColumns(std::size_t capacity) {
  const std::size_t padded = roundUp(capacity, 64);
  return padded % 2048 == 0 ? padded + 64 : padded;
}

} // namespace

KeyIndex::KeyIndex(const CacheSpec &spec, const Kernels &kernelsIn)
    : quantised(spec.indexBits != 16),
      columnStride(quantised ? blockSize : strideOfColumns(spec.capacity)), kernels(kernelsIn),
      bits(spec.indexBits), headDim(spec.headDim), nComponents(spec.nIndexed()),
      blocks(quantised ? spec.capacity / blockSize : 0),
      cellBytes(CellLayout{bits, nComponents, blocks}.bytes()),
      columnMemory(product({spec.nTasks(), nComponents, columnStride, sizeof(Half)})),
      cellMemory(product({spec.nTasks(), cellBytes})) {}

void KeyIndex::append(std::size_t at, const Half *rows, std::size_t begin, std::size_t end) const {
  if (!quantised) {
    writeColumns(rows, headDim, nComponents, columns(at), columnStride, begin, end);
    return;
  }
  const std::size_t block = begin / blockSize, start = block * blockSize;
  if (end == start + blockSize)
    kernels.quantiseBlock({rows + start * headDim, headDim, cells(at), block});
  else
    writeColumns(rows + start * headDim, headDim, nComponents, columns(at), columnStride,
                 begin - start, end - start);
}

void KeyIndex::copy(std::size_t from, std::size_t to, std::size_t length) const {
  const std::size_t nColumn = quantised ? length % blockSize : length;
  for (std::size_t c = 0; c < nComponents; ++c)
    std::memcpy(columns(to) + c * columnStride, columns(from) + c * columnStride,
                nColumn * sizeof(Half));
  const CellLayout layout{bits, nComponents, blocks};
  const std::size_t used = quantised ? (length / blockSize + cellBlocks - 1) / cellBlocks : 0;
  for (std::size_t first = 0; first < used; first += cellsTogether) {
    const std::size_t last = std::min(used, first + cellsTogether) - 1;
    const std::size_t n = layout.cellAt(0, last) + layout.cellBytes(last) - layout.cellAt(0, first);
    for (std::size_t c = 0; c < nComponents; ++c)
      std::memcpy(cells(to).start + layout.cellAt(c, first),
                  cells(from).start + layout.cellAt(c, first), n);
  }
}

} // namespace sparq::cpu
