// SPDX-License-Identifier: Apache-2.0
//
// Many tokens at once into an empty row of the cache (prefill): what append would leave, one token
// after the other. Also what an operator on a device has to settle for itself: how many tokens a
// row takes.
#include "halves.hpp"

namespace sparq {

// What a requested length means: below 0, the row stays as it is; else the row is replaced by so
// many tokens, and by no more than there are.
struct FillLength : poplar::Vertex {
  poplar::Input<int> length;
  poplar::Output<unsigned> held;
  poplar::Output<unsigned> replace; // 0 or 1
  unsigned nTokens;

  void compute() {
    const int requested = *length;
    *replace = requested >= 0;
    *held = requested < 0 ? 0 : minimum(static_cast<unsigned>(requested), nTokens);
  }
};

// Rows of a remote copy: of layer 0 `first`, then one every `step`.
struct FillOffsets : poplar::MultiVertex {
  poplar::Input<unsigned> layer;
  WordsOut rows; // [n]
  unsigned n, first, step, layerRows;

  void compute(unsigned worker) {
    const unsigned base = first + *layer * layerRows;
    for (unsigned i = worker; i < n; i += numWorkers())
      rows[i] = base + i * step;
  }
};

// Keys to key columns, of the first components. tailLength is a multiple of 64: no two workers
// share a word.
struct FillColumns : poplar::MultiVertex {
  HalvesIn keys;     // [n][rowSize]: of each row the first numbers
  HalvesOut columns; // [nComponents][tailLength], the first n of each
  unsigned n, rowSize, nComponents, tailLength;

  void compute(unsigned worker) {
    const unsigned inFours = n & ~(quadSize - 1);
    for (unsigned c = worker * quadSize; c < nComponents; c += numWorkers() * quadSize) {
      for (unsigned i = 0; i != inFours; i += quadSize)
        transposeFour(&keys[i * rowSize + c], rowSize, &columns[c * tailLength + i], tailLength);
      for (unsigned i = inFours; i != n; ++i)
        for (unsigned j = 0; j != quadSize; ++j)
          columns[(c + j) * tailLength + i] = keys[i * rowSize + c + j];
    }
  }
};

// Key columns of chunk `index` into the tail, if that is where the row ends.
struct FillTail : poplar::MultiVertex {
  poplar::Input<unsigned> held;
  HalvesIn columns; // [nComponents][chunk]
  HalvesInOut tail; // the same
  unsigned index, chunk, nComponents;

  void compute(unsigned worker) {
    if ((*held & ~(chunk - 1)) != index * chunk)
      return;
    const unsigned n = *held & (chunk - 1);
    for (unsigned c = worker; c < nComponents; c += numWorkers())
      copyHalves(&tail[c * chunk], &columns[c * chunk], n);
  }
};

// v_sum over positions `first` on: one fp32 addition a position, ascending, from 0 (contract E3).
struct FillSum : poplar::MultiVertex {
  poplar::Input<unsigned> held;
  HalvesIn values;      // [n][width]
  FloatsInOut valueSum; // [width]
  unsigned first, n, width;

  void compute(unsigned worker) {
    const unsigned count = *held > first ? minimum(*held - first, n) : 0;
    for (unsigned c = worker * nLanes; c < width; c += numWorkers() * nLanes) {
      Lanes sum = first == 0 ? Lanes{} : loadLanes(&valueSum[c]);
      for (unsigned i = 0; i != count; ++i)
        sum += loadLanes(&values[i * width + c]);
      storeLanes(&valueSum[c], sum);
    }
  }
};

// 1 where a token is asked for and there is room: a device can not refuse, and a row past its
// capacity would be another's.
struct ActiveToken : poplar::Vertex {
  poplar::Input<int> requested;
  poplar::Input<unsigned> filled;
  poplar::Output<unsigned> active;
  unsigned capacity;

  void compute() { *active = *requested != 0 && *filled < capacity; }
};

} // namespace sparq
