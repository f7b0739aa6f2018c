// SPDX-License-Identifier: Apache-2.0
//
// Weighted sums of values, block by block (contract E3): what dense attention does with a wave and
// SparQ with the fetched rows.
//   partial[b, h, c] = sum over the block of fl(weight[h, p] * V[p, c]), ascending from +0;
//   accumulator = left fold of the partials
#include "lanes.hpp"

namespace sparq {

class WeightedValues : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  poplar::Input<unsigned> wave;
  HalvesIn values;    // [nRows][width]
  FloatsIn weights;   // [groupSize][nRows], or of all waves: see weightStride
  FloatsOut partials; // [ceil(nRows / 64)][groupSize][width]
  // Row i is entry begin + wave * stride + i of the list; entries at or beyond min(filled, limit),
  // or (wave + 1) * stride where stride is not 0, are absent.
  unsigned begin, stride, limit;
  // weights of head h, wave w start at h * headStride + w * weightStride.
  unsigned headStride, weightStride;
  unsigned groupSize, nRows, width;

  bool compute(unsigned worker) {
    const unsigned first = begin + *wave * stride;
    unsigned end = minimum(*filled, limit);
    if (stride != 0)
      end = minimum(end, (*wave + 1) * stride);
    const unsigned n = end > first ? minimum(end - first, nRows) : 0;
    const unsigned nBlocks = (nRows + blockSize - 1) / blockSize, nChunks = width / nLanes;
    for (unsigned item = worker; item < nBlocks * groupSize * nChunks; item += numWorkers()) {
      const unsigned c = item % nChunks * nLanes, h = item / nChunks % groupSize,
                     b = item / nChunks / groupSize;
      const float *weight = &weights[h * headStride + *wave * weightStride];
      Lanes sum{};
      const unsigned stop = minimum((b + 1) * blockSize, n);
      for (unsigned p = b * blockSize; p < stop; ++p)
        sum += weight[p] * loadLanes(&values[p * width + c]);
      storeLanes(&partials[(b * groupSize + h) * width + c], sum);
    }
    return true;
  }
};

// Adds the blocks of one wave to the accumulator, ascending; the first wave starts from +0.
class FoldBlocks : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> wave;
  FloatsIn partials;       // [nBlocks][groupSize][width]
  FloatsInOut accumulator; // [groupSize][width]
  unsigned nBlocks, groupSize, width;

  bool compute(unsigned worker) {
    for (unsigned i = worker * nLanes; i < groupSize * width; i += numWorkers() * nLanes) {
      Lanes sum{};
      if (*wave != 0)
        sum = loadLanes(&accumulator[i]);
      for (unsigned b = 0; b != nBlocks; ++b)
        sum += loadLanes(&partials[b * groupSize * width + i]);
      storeLanes(&accumulator[i], sum);
    }
    return true;
  }
};

} // namespace sparq
