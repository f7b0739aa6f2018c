// SPDX-License-Identifier: Apache-2.0
//
// SparQ: exact attention over the fetched rows (contract E6.4).
#include "lanes.hpp"

namespace sparq {

// Exact score of each row.
struct RowScores : poplar::MultiVertex {
  poplar::Input<unsigned> filled;
  HalvesIn keys;    // [nRows][headDim]
  HalvesIn query;   // [groupSize][headDim]
  FloatsOut scores; // [groupSize][nRows]; the lowest number for rows that stand for no position
  FloatsOut maxima; // [6][groupSize]
  unsigned groupSize, headDim, nRows, firstRow;
  float scale;

  void compute(unsigned worker) {
    const unsigned n = *filled > firstRow ? minimum(*filled - firstRow, nRows) : 0;
    // Rows of all heads shared out: of each head a worker goes on where it is after the last one.
    unsigned row = worker;
    for (unsigned h = 0; h != groupSize; ++h, row -= nRows) {
      float largest = lowest;
      for (; row < nRows; row += numWorkers()) {
        float score = lowest;
        if (row < n) {
          score = dot(&query[h * headDim], &keys[row * headDim], headDim) * scale;
          largest = larger(score, largest);
        }
        scores[h * nRows + row] = score;
      }
      maxima[worker * groupSize + h] = largest;
    }
  }
};

// Scores of rows to weights, in place; 0 for rows that stand for no position.
struct RowWeights : poplar::MultiVertex {
  poplar::Input<unsigned> filled;
  FloatsIn maximum;    // [6][groupSize]
  FloatsInOut weights; // [groupSize][nRows]: scores in, weights out
  unsigned groupSize, nRows, firstRow;

  void compute(unsigned worker) {
    const unsigned n = *filled > firstRow ? minimum(*filled - firstRow, nRows) : 0;
    unsigned row = worker; // shared out as above
    for (unsigned h = 0; h != groupSize; ++h, row -= nRows) {
      if (row >= nRows)
        continue;
      const float m = largestOfSix(&maximum[h], groupSize);
      for (; row < nRows; row += numWorkers()) {
        float &weight = weights[h * nRows + row];
        weight = row < n ? softmaxWeight(weight - m) : 0.0f;
      }
    }
  }
};

// Sum of weights over the list of selected positions: lane sum of each block of 64 entries, blocks
// ascending. Heads shared out over the workers.
struct ListSums : poplar::MultiVertex {
  FloatsIn weights; // [groupSize][topK]
  FloatsOut sums;   // [groupSize], E
  unsigned groupSize, topK;

  void compute(unsigned worker) {
    for (unsigned h = worker; h < groupSize; h += numWorkers())
      sums[h] = list(&weights[h * topK]);
  }

private:
  float list(const float *weight) const {
    float sum = 0.0f;
    for (unsigned b = 0; b < topK; b += blockSize) {
      Lanes lanes{};
      const unsigned end = minimum(b + blockSize, topK);
      unsigned i = b;
      for (; i + nLanes <= end; i += nLanes)
        lanes += loadWords<Lanes>(weight + i); // topK may be odd
      for (; i != end; ++i)
        lanes[i % nLanes] += weight[i];
      sum += treeSum(lanes);
    }
    return sum;
  }
};

} // namespace sparq
