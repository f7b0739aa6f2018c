// SPDX-License-Identifier: Apache-2.0
//
// Dense attention, scores of a wave of keys (contract E6.4): score[h, p] = dot(q[h], K[p]) * scale;
// and the rows that a wave reads.
#include "segments.hpp"

namespace sparq {

struct DenseScores : poplar::MultiVertex {
  poplar::Input<unsigned> filled, wave;
  HalvesIn keys;      // [length][headDim]
  HalvesIn query;     // [groupSize][headDim]
  FloatsInOut scores; // [groupSize][partPositions]; this wave's segment is written
  unsigned groupSize, headDim, partPositions, part, stride, length, nWaves;
  float scale;

  void compute(unsigned worker) {
    const Segments segments(part, stride, length, nWaves, 0, 0, 1, *filled);
    const unsigned n = segments.valid(*wave, *filled);
    for (unsigned p = worker; p < n; p += numWorkers())
      for (unsigned h = 0; h != groupSize; ++h)
        scores[h * partPositions + segments.local(*wave) + p] =
            dot(&query[h * headDim], &keys[p * headDim], headDim) * scale;
  }
};

// Rows of the cache for one part of a wave: consecutive positions. Past the capacity the last row
// is read again; no vertex reads the scores that come of it.
struct RowOffsets : poplar::MultiVertex {
  poplar::Input<unsigned> wave, layer;
  WordsOut rows;               // [nRows]
  unsigned nRows, rowsPerWave; // of this part; of all of them
  unsigned firstRow, lastRow;  // of the part's first wave; the last of the cache
  unsigned layerRows;          // a layer's are so far behind those of the one before

  void compute(unsigned worker) {
    const unsigned first = firstRow + *wave * rowsPerWave, base = *layer * layerRows;
    for (unsigned i = worker; i < nRows; i += numWorkers())
      rows[i] = base + minimum(first + i, lastRow);
  }
};

} // namespace sparq
