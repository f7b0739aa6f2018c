// SPDX-License-Identifier: Apache-2.0
//
// SparQ: approximate scores from `rank` components of the keys (contract E3, E6.2), in fp16 or from
// a key index of 8, 4 or 2 bits that is streamed (contract E9), and of the tail; and which rows of
// key columns a wave reads. In fp16
//   s[h, p] = (sum over j of q[h, i1[j]] * K[p, i1[j]], ascending from +0) * inv_tau[h]
#include "index_scores.hpp"

namespace sparq {

// Scores of every step-th four of the positions [first, n); column(j) points to component j of
// position 0.
template <class Column>
static inline void scorePositions(const Column &column, const float *query, unsigned rank,
                                  float inverseTemperature, float *scores, unsigned first,
                                  unsigned n, unsigned step) {
  for (unsigned p = first; p < n; p += step) {
    Quad sum{};
    unsigned j = 0;
    for (; j + 2 <= rank; j += 2) { // two to a pass, which has a price of its own
      sum += query[j] * load<Quad>(column(j) + p);
      sum += query[j + 1] * load<Quad>(column(j + 1) + p);
    }
    if (j != rank)
      sum += query[j] * load<Quad>(column(j) + p);
    store(scores + p, sum * inverseTemperature);
  }
}

// Positions of one wave, from key columns brought by this wave.
struct ApproxScores : poplar::MultiVertex {
  poplar::Input<unsigned> wave;
  HalvesIn columns;            // [rank][length]
  FloatsIn selectedQuery;      // [groupSize][rank]
  FloatsIn inverseTemperature; // [groupSize]
  FloatsInOut scores;          // [groupSize][partPositions]; this wave's segment is written
  unsigned groupSize, rank, length, nPositions,
      partPositions; // nPositions <= length land on this part

  void compute(unsigned worker) {
    const half *base = &columns[0];
    const auto column = [&](unsigned j) { return base + j * length; };
    for (unsigned h = 0; h != groupSize; ++h)
      scorePositions(column, &selectedQuery[h * rank], rank, inverseTemperature[h],
                     &scores[h * partPositions + *wave * length], worker * quadSize, nPositions,
                     numWorkers() * quadSize);
  }
};

// Positions since the last full chunk, from the columns that are still in SRAM.
struct TailScores : poplar::MultiVertex {
  HalvesIn tail;               // [headDim][tailLength]
  WordsIn components;          // [rank]
  FloatsIn selectedQuery;      // [groupSize][rank]
  FloatsIn inverseTemperature; // [groupSize]
  FloatsInOut scores; // [groupSize][partPositions]; the segment from tailBegin on is written
  unsigned groupSize, rank, tailLength, tailBegin, partPositions;

  void compute(unsigned worker) {
    const half *base = &tail[0];
    const auto column = [&](unsigned j) { return base + components[j] * tailLength; };
    for (unsigned h = 0; h != groupSize; ++h)
      scorePositions(column, &selectedQuery[h * rank], rank, inverseTemperature[h],
                     &scores[h * partPositions + tailBegin], worker * quadSize, tailLength,
                     numWorkers() * quadSize);
  }
};

// Row numbers of the key columns that a wave reads: for each chunk of this tile, the row of each
// selected component, shared out over the workers: there are few chunks.
struct ColumnOffsets : poplar::MultiVertex {
  poplar::Input<unsigned> wave, layer;
  WordsIn columns;  // [rank]: the first chunk of each component, of one task with all layers
  WordsOut offsets; // [nOwn][rank]
  unsigned rank, nOwn, firstChunk, chunksPerWave, nChunks, rowBase;
  unsigned otherRows; // of a layer, beside those of the task

  void compute(unsigned worker) {
    const unsigned base = rowBase + *layer * otherRows;
    for (unsigned i = 0; i != nOwn; ++i) {
      // The last wave may reach past the last chunk. It reads that chunk again; no vertex reads the
      // scores that come of it.
      const unsigned chunk = minimum(*wave * chunksPerWave + firstChunk + i, nChunks - 1);
      for (unsigned j = worker; j < rank; j += numWorkers())
        offsets[i * rank + j] = base + columns[j] + chunk;
    }
  }
};

// Coefficients for the blocks of one wave, blocks and heads shared out over the workers.
struct BlockCoefficients : poplar::MultiVertex {
  WordsIn columns;        // [rank][columnWords]
  FloatsIn selectedQuery; // [groupSize][rank]
  IntsOut coefficients;   // [nBlocks][groupSize][rank]
  FloatsOut units;        // [nBlocks][groupSize]
  FloatsOut offsets;      // [nBlocks][groupSize]
  unsigned groupSize, rank, indexBits, columnWords, nBlocks;
  float limit;

  void compute(unsigned worker) {
    const unsigned *base = &columns[0];
    const auto column = [&](unsigned j) { return base + j * columnWords; };
    coefficientsOfBlocks(column, &selectedQuery[0], groupSize, rank, indexBits, nBlocks, limit,
                         &coefficients[0], &units[0], &offsets[0], worker, numWorkers());
  }
};

// Positions of one wave, from columns of the key index brought by this wave.
struct IndexScores : poplar::MultiVertex {
  poplar::Input<unsigned> wave;
  WordsIn columns;             // [rank][columnWords]
  IntsIn coefficients;         // [nBlocks][groupSize][rank]
  FloatsIn units;              // [nBlocks][groupSize]
  FloatsIn offsets;            // [nBlocks][groupSize]
  FloatsIn inverseTemperature; // [groupSize]
  FloatsInOut scores;          // [groupSize][partPositions]; this wave's segment is written
  unsigned groupSize, rank, indexBits, columnWords, nBlocks, length, partPositions;

  void compute(unsigned worker) {
    const unsigned *base = &columns[0];
    const auto column = [&](unsigned j) { return base + j * columnWords; };
    scoreBlocks(column,
                {&coefficients[0], &units[0], &offsets[0], &inverseTemperature[0], groupSize, rank,
                 indexBits},
                nBlocks, &scores[*wave * length], partPositions, worker, numWorkers());
  }
};

// Coefficients for the full blocks of a piece of the tail.
struct TailCoefficients : poplar::MultiVertex {
  poplar::Input<unsigned> filled;
  WordsIn tailIndex;      // [headDim][columnWords]
  WordsIn components;     // [rank]
  FloatsIn selectedQuery; // [groupSize][rank]
  IntsOut coefficients;   // [tailLength / 64][groupSize][rank], those of full blocks
  FloatsOut units;        // [tailLength / 64][groupSize]
  FloatsOut offsets;      // [tailLength / 64][groupSize]
  unsigned groupSize, rank, indexBits, columnWords, piece, tailLength, chunk;
  float limit;

  void compute(unsigned worker) {
    const TailPiece tail(*filled, chunk, piece, tailLength);
    const unsigned *base = &tailIndex[0];
    const auto column = [&](unsigned j) { return base + components[j] * columnWords; };
    coefficientsOfBlocks(column, &selectedQuery[0], groupSize, rank, indexBits, tail.nComplete,
                         limit, &coefficients[0], &units[0], &offsets[0], worker, numWorkers());
  }
};

// Positions of a piece of the tail: full blocks from the index, the open one from its fp16 columns.
struct TailIndexScores : poplar::MultiVertex {
  poplar::Input<unsigned> filled;
  WordsIn tailIndex;           // [headDim][columnWords]
  HalvesIn tail;               // [headDim][64], of the open block
  WordsIn components;          // [rank]
  FloatsIn selectedQuery;      // [groupSize][rank]
  IntsIn coefficients;         // [tailLength / 64][groupSize][rank]
  FloatsIn units;              // [tailLength / 64][groupSize]
  FloatsIn offsets;            // [tailLength / 64][groupSize]
  FloatsIn inverseTemperature; // [groupSize]
  FloatsInOut scores; // [groupSize][partPositions]; of the segment from tailBegin on, what is held
  unsigned groupSize, rank, indexBits, columnWords, piece, tailLength, chunk, tailBegin,
      partPositions;

  void compute(unsigned worker) {
    const TailPiece own(*filled, chunk, piece, tailLength);
    const unsigned *base = &tailIndex[0];
    const auto column = [&](unsigned j) { return base + components[j] * columnWords; };
    scoreBlocks(column,
                {&coefficients[0], &units[0], &offsets[0], &inverseTemperature[0], groupSize, rank,
                 indexBits},
                own.nComplete, &scores[tailBegin], partPositions, worker, numWorkers());
    const half *open = &tail[0];
    const auto openColumn = [&](unsigned j) { return open + components[j] * blockSize; };
    for (unsigned h = 0; h != groupSize; ++h)
      scorePositions(openColumn, &selectedQuery[h * rank], rank, inverseTemperature[h],
                     &scores[h * partPositions + tailBegin + own.nComplete * blockSize],
                     worker * quadSize, own.nOpen, numWorkers() * quadSize);
  }
};

} // namespace sparq
