// SPDX-License-Identifier: Apache-2.0
//
// SparQ: approximate scores from `rank` components of the keys in fp16 (contract E3, E6.2), and
// which rows of key columns a wave reads.
#include "score_positions.hpp"

namespace sparq {

// Positions of one wave, from key columns brought by this wave.
class ApproxScores : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> wave;
  HalvesIn columns;            // [rank][length]
  FloatsIn selectedQuery;      // [groupSize][rank]
  FloatsIn inverseTemperature; // [groupSize]
  FloatsInOut scores;          // [groupSize][partPositions]; this wave's segment is written
  unsigned groupSize, rank, length, nPositions,
      partPositions; // nPositions <= length land on this part

  bool compute(unsigned worker) {
    const half *base = &columns[0];
    const auto column = [&](unsigned j) { return base + j * length; };
    for (unsigned h = 0; h != groupSize; ++h)
      scorePositions(column, &selectedQuery[h * rank], rank, inverseTemperature[h],
                     &scores[h * partPositions + *wave * length], worker * quadSize, nPositions,
                     numWorkers() * quadSize);
    return true;
  }
};

// Positions since the last full chunk, from the columns that are still in SRAM.
class TailScores : public poplar::MultiVertex {
public:
  HalvesIn tail;               // [headDim][tailLength]
  WordsIn components;          // [rank]
  FloatsIn selectedQuery;      // [groupSize][rank]
  FloatsIn inverseTemperature; // [groupSize]
  FloatsInOut scores; // [groupSize][partPositions]; the segment from tailBegin on is written
  unsigned groupSize, rank, tailLength, tailBegin, partPositions;

  bool compute(unsigned worker) {
    const half *base = &tail[0];
    const auto column = [&](unsigned j) { return base + components[j] * tailLength; };
    for (unsigned h = 0; h != groupSize; ++h)
      scorePositions(column, &selectedQuery[h * rank], rank, inverseTemperature[h],
                     &scores[h * partPositions + tailBegin], worker * quadSize, tailLength,
                     numWorkers() * quadSize);
    return true;
  }
};

// Row numbers of the key columns that a wave reads: for each chunk of this tile, the row of each
// selected component, shared out over the workers: there are few chunks.
class ColumnOffsets : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> wave;
  poplar::Input<unsigned> layer;
  WordsIn columns;  // [rank]: the first chunk of each component, of one task with all layers
  WordsOut offsets; // [nOwn][rank]
  unsigned rank, nOwn, firstChunk, chunksPerWave, nChunks, rowBase;
  unsigned otherRows; // of a layer, beside those of the task

  bool compute(unsigned worker) {
    const unsigned base = rowBase + *layer * otherRows;
    for (unsigned i = 0; i != nOwn; ++i) {
      // The last wave may reach past the last chunk. It reads that chunk again; no vertex reads the
      // scores that come of it.
      const unsigned chunk = minimum(*wave * chunksPerWave + firstChunk + i, nChunks - 1);
      for (unsigned j = worker; j < rank; j += numWorkers())
        offsets[i * rank + j] = base + columns[j] + chunk;
    }
    return true;
  }
};

} // namespace sparq
