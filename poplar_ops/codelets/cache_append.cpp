// SPDX-License-Identifier: Apache-2.0
//
// One more token in the cache: its row of K and V, its column entries, the running sum of values,
// the length.
#include "halves.hpp"

namespace sparq {

// Where a slot's new rows of K and V go; a slot without a new token writes to a row of its own that
// nobody reads.
struct AppendOffsets : poplar::Vertex {
  poplar::Input<unsigned> filled;
  poplar::Input<unsigned> active; // 0 or 1
  poplar::Input<unsigned> layer;
  WordsOut rows; // [2]: of the key, of the value
  // Of layer 0; each layer's are layerRows behind those of the one before.
  unsigned rowBase, scratchRow, valueRow, layerRows;

  void compute() {
    const unsigned keyRow = *layer * layerRows + (*active ? rowBase + *filled : scratchRow);
    rows[0] = keyRow;
    rows[1] = keyRow + valueRow;
  }
};

// The token's key into the tail of the key columns, components shared out over the workers: a
// component's positions fill whole words.
struct AppendTail : poplar::MultiVertex {
  poplar::Input<unsigned> filled, active;
  HalvesIn key;     // [nComponents]
  HalvesInOut tail; // [nComponents][width]
  // The tail has room for `width` positions, a power of two: a chunk, or the block that is being
  // filled.
  unsigned nComponents, width;

  void compute(unsigned worker) {
    if (!*active)
      return;
    const unsigned position = *filled & (width - 1);
    for (unsigned c = worker; c < nComponents; c += numWorkers())
      copyHalf(&tail[0], c * width + position, &key[c]);
  }
};

// v_sum += value: one fp32 addition a position (contract E3).
struct AppendSum : poplar::MultiVertex {
  poplar::Input<unsigned> active;
  HalvesIn value;       // [width]
  FloatsInOut valueSum; // [width]
  unsigned width;

  void compute(unsigned worker) {
    if (*active)
      for (unsigned c = worker * nLanes; c < width; c += numWorkers() * nLanes)
        storeLanes(&valueSum[c], loadLanes(&valueSum[c]) + loadLanes(&value[c]));
  }
};

// The new length, and whether this token filled a chunk of key columns.
struct AdvanceLength : poplar::Vertex {
  poplar::InOut<unsigned> filled;
  poplar::Input<unsigned> active;
  poplar::Output<unsigned> full;
  unsigned chunk;

  void compute() {
    *filled += *active;
    *full = *active && (*filled & (chunk - 1)) == 0;
  }
};

struct AnyFull : poplar::Vertex {
  WordsIn full; // [nSlots]
  poplar::Output<bool> any;
  unsigned nSlots;

  void compute() {
    unsigned found = 0;
    for (unsigned slot = 0; slot != nSlots; ++slot)
      found |= full[slot];
    *any = found != 0;
  }
};

// Where the full chunk's columns go; a slot whose chunk is not full writes to rows of its own that
// nobody reads.
struct FlushOffsets : poplar::MultiVertex {
  poplar::Input<unsigned> filled, full, layer;
  WordsOut rows; // [headDim]
  unsigned headDim, nChunks, chunk, rowBase, scratchRow, layerRows;

  void compute(unsigned worker) {
    // A chunk is a power of two, and there is no instruction that divides.
    const unsigned first =
        *layer * layerRows +
        (*full ? rowBase + (*filled >> (31 - __builtin_clz(chunk))) - 1 : scratchRow);
    const unsigned step = *full ? nChunks : 1;
    for (unsigned c = worker; c < headDim; c += numWorkers())
      rows[c] = first + c * step;
  }
};

} // namespace sparq
