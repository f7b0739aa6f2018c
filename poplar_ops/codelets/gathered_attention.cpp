// SPDX-License-Identifier: Apache-2.0
//
// SparQ: exact attention over the fetched rows (contract E6.4), and again the approximate
// weight of each, for alpha (E6.5).
#include "lanes.hpp"

namespace sparq {

// Exact score of each row, and its weight in the approximate softmax: the fetched row holds the
// selected components too, so nothing need be remembered.
class RowScores : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  HalvesIn keys;               // [nRows][headDim]
  HalvesIn query;              // [groupSize][headDim]
  WordsIn components;          // [rank]
  FloatsIn selectedQuery;      // [groupSize][rank]
  FloatsIn inverseTemperature; // [groupSize]
  FloatsIn approxMaximum;      // [6][groupSize]
  FloatsOut scores;            // [groupSize][nRows]
  FloatsOut approxWeights;     // [groupSize][nRows]
  FloatsInOut maxima;          // [6][groupSize]
  unsigned groupSize, headDim, rank, nRows, firstRow;
  float scale;

  bool compute(unsigned worker) {
    const unsigned n = *filled > firstRow ? minimum(*filled - firstRow, nRows) : 0;
    for (unsigned h = 0; h != groupSize; ++h)
      maxima[worker * groupSize + h] = lowest;
    // Exact scores first, then approximate weights: twice as many pieces of work to share out.
    const unsigned nScores = nRows * groupSize;
    for (unsigned item = worker; item < 2 * nScores; item += numWorkers()) {
      const unsigned row = item % nRows, h = item / nRows % groupSize;
      const half *key = &keys[row * headDim];
      if (item < nScores) {
        const float score = row < n ? dot(&query[h * headDim], key, headDim) * scale : 0.0f;
        scores[h * nRows + row] = score;
        float &largest = maxima[worker * groupSize + h];
        if (row < n && score > largest)
          largest = score;
      } else {
        approxWeights[h * nRows + row] = row < n ? approxWeight(key, h) : 0.0f;
      }
    }
    return true;
  }

private:
  float approxWeight(const half *key, unsigned h) {
    float score = 0.0f;
    for (unsigned j = 0; j != rank; ++j)
      score += selectedQuery[h * rank + j] * static_cast<float>(key[components[j]]);
    return softmaxWeight(score * inverseTemperature[h] -
                         largestOfSix(&approxMaximum[h], groupSize));
  }
};

// Scores of rows to weights, in place; 0 for rows that stand for no position.
class RowWeights : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  FloatsIn maximum;    // [6][groupSize]
  FloatsInOut weights; // [groupSize][nRows]: scores in, weights out
  unsigned groupSize, nRows, firstRow;

  bool compute(unsigned worker) {
    const unsigned n = *filled > firstRow ? minimum(*filled - firstRow, nRows) : 0;
    for (unsigned h = 0; h != groupSize; ++h) {
      const float m = largestOfSix(&maximum[h], groupSize);
      for (unsigned row = worker; row < nRows; row += numWorkers()) {
        float &weight = weights[h * nRows + row];
        weight = row < n ? softmaxWeight(weight - m) : 0.0f;
      }
    }
    return true;
  }
};

// Sum of weights over the list of selected positions: lane sum of each block of 64 entries, blocks
// ascending. Heads shared out over the workers.
class ListSums : public poplar::MultiVertex {
public:
  FloatsIn weights;       // [groupSize][topK]
  FloatsIn approxWeights; // [groupSize][topK]
  FloatsOut sums;         // [groupSize], E
  FloatsOut approxSums;   // [groupSize], W
  unsigned groupSize, topK;

  bool compute(unsigned worker) {
    for (unsigned item = worker; item < 2 * groupSize; item += numWorkers()) {
      const unsigned h = item / 2;
      if (item % 2 == 0)
        sums[h] = list(&weights[h * topK]);
      else
        approxSums[h] = list(&approxWeights[h * topK]);
    }
    return true;
  }

private:
  float list(const float *weight) const {
    float sum = 0.0f;
    for (unsigned b = 0; b < topK; b += blockSize) {
      Lanes lanes{};
      const unsigned end = minimum(b + blockSize, topK);
      unsigned i = b;
      for (; i + nLanes <= end; i += nLanes)
        lanes += loadLanes(weight + i);
      for (; i != end; ++i)
        lanes[i % nLanes] += weight[i];
      sum += treeSum(lanes);
    }
    return sum;
  }
};

} // namespace sparq
