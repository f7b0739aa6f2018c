// SPDX-License-Identifier: Apache-2.0
//
// Full blocks of keys into the key index (contract E9): when a token fills one, and block by block
// when many tokens come at once.
#include "quantise.hpp"

namespace sparq {

// The block that a token has just filled, of some components. A worker has whole components, and so
// whole words.
struct QuantiseTail : poplar::MultiVertex {
  poplar::Input<unsigned> filled; // with the token
  poplar::Input<unsigned> full;   // whether it filled a block
  HalvesIn tail;                  // [nComponents][64], of the block
  WordsInOut tailIndex;           // [nComponents][columnWords]
  unsigned nComponents, indexBits, columnWords, chunk;

  void compute(unsigned worker) {
    if (*full == 0)
      return;
    const unsigned position = (*filled - blockSize) & (chunk - 1);
    const unsigned record = position / blockSize * recordWords(indexBits);
    for (unsigned c = worker; c < nComponents; c += numWorkers())
      quantiseBlock(&tail[c * blockSize], indexBits, &tailIndex[c * columnWords + record]);
  }
};

// Whether the block that a token filled was the last of a chunk.
struct ChunkFull : poplar::Vertex {
  poplar::Input<unsigned> filled, blockFull;
  poplar::Output<unsigned> full;
  unsigned chunk;

  void compute() { *full = *blockFull != 0 && (*filled & (chunk - 1)) == 0; }
};

// Many tokens at once: the full blocks of a piece of a chunk. The others keep what they hold;
// nobody reads them.
struct FillIndex : poplar::MultiVertex {
  HalvesIn columns; // [headDim][tailLength], the first n positions of each
  WordsInOut index; // [headDim][columnWords]
  unsigned n, headDim, indexBits, columnWords, tailLength;

  void compute(unsigned worker) {
    for (unsigned c = worker; c < headDim; c += numWorkers())
      for (unsigned block = 0; block != n / blockSize; ++block)
        quantiseBlock(&columns[c * tailLength + block * blockSize], indexBits,
                      &index[c * columnWords + block * recordWords(indexBits)]);
  }
};

// The index and the open block of chunk `index` into the tail, if that is where the row ends.
struct FillTailIndex : poplar::MultiVertex {
  poplar::Input<unsigned> held;
  HalvesIn columns;     // [nComponents][chunk]
  WordsIn columnIndex;  // [nComponents][columnWords]
  HalvesInOut tail;     // [nComponents][64]
  WordsInOut tailIndex; // [nComponents][columnWords]
  unsigned index, chunk, nComponents, indexBits, columnWords;

  void compute(unsigned worker) {
    if ((*held & ~(chunk - 1)) != index * chunk)
      return;
    const unsigned nTail = *held & (chunk - 1), nComplete = nTail / blockSize,
                   nOpen = nTail % blockSize;
    // Copies, for a word that is stored could be any of these.
    const unsigned n = nComponents, nWords = nComplete * recordWords(indexBits),
                   stride = columnWords, ofColumn = chunk;
    const unsigned *const from = &columnIndex[0];
    const half *const open = &columns[nComplete * blockSize];
    unsigned *const to = &tailIndex[0];
    half *const toOpen = &tail[0];
    for (unsigned c = worker; c < n; c += numWorkers()) {
      for (unsigned i = 0; i != nWords; ++i)
        to[c * stride + i] = from[c * stride + i];
      copyHalves(toOpen + c * blockSize, open + c * ofColumn, nOpen);
    }
  }
};

} // namespace sparq
