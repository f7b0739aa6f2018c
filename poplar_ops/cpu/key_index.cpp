// SPDX-License-Identifier: Apache-2.0
#include "key_index.hpp"

#include "arith/arith.hpp"
#include "key_cells.hpp"
#include "key_columns.hpp"
#include "key_planes.hpp"

#include <algorithm>
#include <cstring>

namespace sparq {
namespace cpu {
namespace {

// Columns are apart by a multiple of 128 bytes that is no multiple of 4096, or the columns read
// together would compete for the same lines of the cache.
std::size_t strideOfColumns(std::size_t capacity) {
  const std::size_t padded = roundUp(capacity, 64);
  return padded % 2048 == 0 ? padded + 64 : padded;
}

std::size_t bytesOfCells(unsigned bits, unsigned nComponents, std::size_t blocks, bool inPlanes) {
  return inPlanes ? PlaneLayout{bits, nComponents, blocks}.bytes()
                  : CellLayout{bits, nComponents, blocks}.bytes();
}

} // namespace

KeyIndex::KeyIndex(const CacheSpec &spec, const Kernels &kernelsIn)
    : quantised(spec.indexBits != 16), inPlanes(spec.indexReadBits != 0),
      columnStride(quantised ? blockSize : strideOfColumns(spec.capacity)), kernels(kernelsIn),
      bits(spec.indexBits), headDim(spec.headDim), nComponents(spec.nIndexed()),
      blocks(quantised ? spec.capacity / blockSize : 0),
      cellBytes(bytesOfCells(bits, nComponents, blocks, inPlanes)),
      widestStride(inPlanes ? roundUp(nComponents, 32)
                            : 0), // whole lines of the processor's caches
      columnMemory(product({spec.nTasks(), nComponents, columnStride, sizeof(Half)})),
      cellMemory(product({spec.nTasks(), cellBytes})),
      widestMemory(product({spec.nTasks(), widestStride, sizeof(Half)})) {}

void KeyIndex::append(std::size_t at, const Half *rows, std::size_t begin, std::size_t end) const {
  if (!quantised) {
    writeColumns(rows, headDim, nComponents, columns(at), columnStride, begin, end);
    return;
  }
  const std::size_t block = begin / blockSize, start = block * blockSize;
  if (end == start + blockSize)
    kernels.quantiseBlock(
        {rows + start * headDim, headDim, cells(at), block, inPlanes ? widest(at) : nullptr});
  else
    writeColumns(rows + start * headDim, headDim, nComponents, columns(at), columnStride,
                 begin - start, end - start);
}

void KeyIndex::truncate(std::size_t at, std::size_t nBlocks) const {
  if (!inPlanes || nBlocks == 0)
    return;
  const PlaneLayout layout{bits, nComponents, blocks};
  for (std::size_t c = 0; c < nComponents; ++c) {
    Half most = 0; // steps are no less than +0, so their bits order as they do
    for (std::size_t block = 0; block < nBlocks; ++block) {
      const PlaneLayout::Place place = layout.place(block / cellBlocks);
      Half step;
      std::memcpy(&step,
                  cells(at).start + place.scales + c * place.nextComponent +
                      block % cellBlocks * sizeof(Half),
                  sizeof(step));
      most = std::max(most, step);
    }
    widest(at)[c] = most;
  }
}

void KeyIndex::copy(std::size_t from, std::size_t to, std::size_t length) const {
  const std::size_t nColumn = quantised ? length % blockSize : length;
  for (std::size_t c = 0; c < nComponents; ++c)
    std::memcpy(columns(to) + c * columnStride, columns(from) + c * columnStride,
                nColumn * sizeof(Half));
  if (inPlanes) {
    copyPlanes(from, to, length);
    return;
  }
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

void KeyIndex::copyPlanes(std::size_t from, std::size_t to, std::size_t length) const {
  std::memcpy(widest(to), widest(from), widestStride * sizeof(Half));
  const PlaneLayout layout{bits, nComponents, blocks};
  const auto copyBytes = [&](std::size_t at, std::size_t n) {
    std::memcpy(cells(to).start + at, cells(from).start + at, n);
  };
  const std::size_t used = (length / blockSize + cellBlocks - 1) / cellBlocks;
  for (std::size_t cell = 0; cell < used; cell += cellsTogether) {
    const std::size_t n = std::min<std::size_t>(used - cell, cellsTogether);
    const PlaneLayout::Place place = layout.place(cell);
    for (std::size_t c = 0; c < nComponents; ++c) {
      copyBytes(place.scales + c * place.nextComponent, n * PlaneLayout::scaleBytes);
      for (std::size_t t = 0; t < bits; ++t)
        copyBytes(place.planes + c * place.nextComponent + t * place.nextPlane,
                  n * PlaneLayout::planeBytes);
    }
  }
}

} // namespace cpu
} // namespace sparq
