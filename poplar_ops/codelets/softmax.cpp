// SPDX-License-Identifier: Apache-2.0
//
// Softmax over positions that are spread over tiles (contract E5): exact maximum, weights, sums by
// blocks of 64, left fold of the block sums.
#include "segments.hpp"

namespace sparq {

static constexpr float lowest = -3.402823466e+38f;

// Largest score of each head among this part's positions, one partial result a worker.
class PartialMax : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  FloatsIn scores;  // [groupSize][nLocal]
  FloatsOut maxima; // [6][groupSize]
  unsigned groupSize, nLocal, part, stride, length, nWaves, tailLength, chunk;

  bool compute(unsigned worker) {
    const Segments segments(part, stride, length, nWaves, tailLength, chunk, *filled);
    for (unsigned h = 0; h != groupSize; ++h) {
      float largest = lowest;
      for (unsigned s = 0; s != segments.count(); ++s) {
        const float *score = &scores[h * nLocal + segments.local(s)];
        const unsigned n = segments.valid(s, *filled);
        for (unsigned p = worker; p < n; p += numWorkers())
          largest = score[p] > largest ? score[p] : largest;
      }
      maxima[worker * groupSize + h] = largest;
    }
    return true;
  }
};

// Largest of many partial results, heads shared out over the workers.
class ReduceMax : public poplar::MultiVertex {
public:
  FloatsIn maxima;   // [nPartials][groupSize]
  FloatsOut maximum; // [groupSize]
  unsigned nPartials, groupSize;

  bool compute(unsigned worker) {
    for (unsigned h = worker; h < groupSize; h += numWorkers()) {
      float largest = lowest;
      for (unsigned i = 0; i != nPartials; ++i) {
        const float m = maxima[i * groupSize + h];
        largest = m > largest ? m : largest;
      }
      maximum[h] = largest;
    }
    return true;
  }
};

// scores -> weights in place, 0 where there is no position; and the lane sum of each block of 64.
class SoftmaxWeights : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  FloatsIn maximum;    // [groupSize]
  FloatsInOut weights; // [groupSize][nLocal]: scores in, weights out
  FloatsOut blockSums; // [groupSize][nLocal / 64]
  unsigned groupSize, nLocal, part, stride, length, nWaves, tailLength, chunk;

  bool compute(unsigned worker) {
    const Segments segments(part, stride, length, nWaves, tailLength, chunk, *filled);
    for (unsigned h = 0; h != groupSize; ++h) {
      unsigned localBlock = 0;
      for (unsigned s = 0; s != segments.count(); ++s) {
        const unsigned n = segments.valid(s, *filled);
        for (unsigned b = 0; b != segments.room(s); b += blockSize, ++localBlock) {
          if (localBlock % numWorkers() != worker)
            continue;
          float *weight = &weights[h * nLocal + localBlock * blockSize];
          blockSums[h * (nLocal / blockSize) + localBlock] =
              block(weight, n > b ? minimum(n - b, blockSize) : 0, maximum[h]);
        }
      }
    }
    return true;
  }

private:
  static float block(float *weight, unsigned n, float maximum) {
    Lanes sum{};
    unsigned p = 0;
    for (; p + nLanes <= n; p += nLanes) {
      const Lanes w = softmaxWeight(loadLanes(weight + p) - maximum);
      storeLanes(weight + p, w);
      sum += w;
    }
    for (; p != blockSize; ++p) {
      const float w = p < n ? softmaxWeight(weight[p] - maximum) : 0.0f;
      weight[p] = w;
      sum[p % nLanes] += w;
    }
    return treeSum(sum);
  }
};

// Left fold of block sums, ascending by position, heads shared out over the workers.
class FoldSums : public poplar::MultiVertex {
public:
  FloatsIn blockSums; // [groupSize][nBlocks], ascending by position
  FloatsOut sums;     // [groupSize]
  unsigned nBlocks, groupSize;

  bool compute(unsigned worker) {
    for (unsigned h = worker; h < groupSize; h += numWorkers()) {
      float sum = 0.0f;
      for (unsigned b = 0; b != nBlocks; ++b)
        sum += blockSums[h * nBlocks + b];
      sums[h] = sum;
    }
    return true;
  }
};

} // namespace sparq
