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
  unsigned groupSize, nRows, width; // width: even, a multiple of 8 above 12

  bool compute(unsigned worker) {
    const unsigned first = begin + *wave * stride;
    unsigned end = minimum(*filled, limit);
    if (stride != 0)
      end = minimum(end, (*wave + 1) * stride);
    const unsigned n = end > first ? minimum(end - first, nRows) : 0;
    // Lanes of eight where a part has many components, of two where it has few: six workers want
    // work.
    if (width > 6 * pairSize)
      accumulate<Lanes>(worker, n);
    else
      accumulate<Pair>(worker, n);
    return true;
  }

private:
  template <class V> void accumulate(unsigned worker, unsigned n) {
    constexpr unsigned step = sizeof(V) / sizeof(float);
    const unsigned nBlocks = (nRows + blockSize - 1) / blockSize, nSteps = width / step;
    for (unsigned item = worker; item < nBlocks * groupSize * nSteps; item += numWorkers()) {
      const unsigned c = item % nSteps * step, h = item / nSteps % groupSize;
      const unsigned b = item / nSteps / groupSize;
      const float *weight = &weights[h * headStride + *wave * weightStride];
      V sum{};
      const unsigned stop = minimum((b + 1) * blockSize, n);
      for (unsigned p = b * blockSize; p < stop; ++p)
        sum += weight[p] * load<V>(&values[p * width + c]);
      store(&partials[(b * groupSize + h) * width + c], sum);
    }
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
