// SPDX-License-Identifier: Apache-2.0
//
// SparQ: approximate scores from a key index of 8, 4 or 2 bits that is streamed, and from its tail
// (contract E9).
#include "index_scores.hpp"
#include "score_positions.hpp"

namespace sparq {

// Coefficients for the blocks of one wave, blocks and heads shared out over the workers.
class BlockCoefficients : public poplar::MultiVertex {
public:
  WordsIn columns;        // [rank][columnWords]
  FloatsIn selectedQuery; // [groupSize][rank]
  IntsOut coefficients;   // [nBlocks][groupSize][rank]
  FloatsOut units;        // [nBlocks][groupSize]
  FloatsOut offsets;      // [nBlocks][groupSize]
  unsigned groupSize, rank, indexBits, columnWords, nBlocks;
  float limit;

  bool compute(unsigned worker) {
    const unsigned *base = &columns[0];
    const auto column = [&](unsigned j) { return base + j * columnWords; };
    coefficientsOfBlocks(column, &selectedQuery[0], groupSize, rank, indexBits, nBlocks, limit,
                         &coefficients[0], &units[0], &offsets[0], worker, numWorkers());
    return true;
  }
};

// Positions of one wave, from columns of the key index brought by this wave.
class IndexScores : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> wave;
  WordsIn columns;             // [rank][columnWords]
  IntsIn coefficients;         // [nBlocks][groupSize][rank]
  FloatsIn units;              // [nBlocks][groupSize]
  FloatsIn offsets;            // [nBlocks][groupSize]
  FloatsIn inverseTemperature; // [groupSize]
  FloatsInOut scores;          // [groupSize][partPositions]; this wave's segment is written
  unsigned groupSize, rank, indexBits, columnWords, nBlocks, length, partPositions;

  bool compute(unsigned worker) {
    const unsigned *base = &columns[0];
    const auto column = [&](unsigned j) { return base + j * columnWords; };
    scoreBlocks(column,
                {&coefficients[0], &units[0], &offsets[0], &inverseTemperature[0], groupSize, rank,
                 indexBits},
                nBlocks, &scores[*wave * length], partPositions, worker, numWorkers());
    return true;
  }
};

// Coefficients for the full blocks of a piece of the tail.
class TailCoefficients : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  WordsIn tailIndex;      // [headDim][columnWords]
  WordsIn components;     // [rank]
  FloatsIn selectedQuery; // [groupSize][rank]
  IntsOut coefficients;   // [tailLength / 64][groupSize][rank], those of full blocks
  FloatsOut units;        // [tailLength / 64][groupSize]
  FloatsOut offsets;      // [tailLength / 64][groupSize]
  unsigned groupSize, rank, indexBits, columnWords, piece, tailLength, chunk;
  float limit;

  bool compute(unsigned worker) {
    const TailPiece tail(*filled, chunk, piece, tailLength);
    const unsigned *base = &tailIndex[0];
    const auto column = [&](unsigned j) { return base + components[j] * columnWords; };
    coefficientsOfBlocks(column, &selectedQuery[0], groupSize, rank, indexBits, tail.nComplete,
                         limit, &coefficients[0], &units[0], &offsets[0], worker, numWorkers());
    return true;
  }
};

// Positions of a piece of the tail: full blocks from the index, the open one from its fp16 columns.
class TailIndexScores : public poplar::MultiVertex {
public:
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

  bool compute(unsigned worker) {
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
    return true;
  }
};

} // namespace sparq
