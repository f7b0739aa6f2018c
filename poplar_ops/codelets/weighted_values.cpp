// SPDX-License-Identifier: Apache-2.0
//
// Weighted sums of values, block by block (contract E3): what dense attention does with a wave and
// SparQ with the fetched rows.
//   partial[b, h, c] = sum over the block of fl(weight[h, p] * V[p, c]), ascending from +0;
//   accumulator = left fold of the partials
#include "lanes.hpp"

namespace sparq {

struct WeightedValues : poplar::MultiVertex {
  poplar::Input<unsigned> filled, wave;
  HalvesIn values;    // [nRows][width]
  FloatsIn weights;   // [groupSize][nRows], or of all waves: see weightStride
  FloatsOut partials; // [ceil(nRows / 64)][groupSize][width]
  // Row i is entry begin + wave * stride + i of the list; entries at or beyond min(filled, limit),
  // or (wave + 1) * stride where stride is not 0, are absent.
  unsigned begin, stride, limit;
  // weights of head h, wave w start at h * headStride + w * weightStride.
  unsigned headStride, weightStride;
  unsigned groupSize, nRows, width; // width: even, a multiple of 8 above 12

  void compute(unsigned worker) {
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
  }

private:
  template <class V> void accumulate(unsigned worker, unsigned n) {
    constexpr unsigned step = sizeof(V) / sizeof(float);
    const unsigned nBlocks = (nRows + blockSize - 1) / blockSize;
    // Components of all blocks and heads shared out: a worker goes on where it is after a head.
    unsigned c = worker * step;
    for (unsigned b = 0; b != nBlocks; ++b)
      for (unsigned h = 0; h != groupSize; ++h, c -= width)
        for (; c < width; c += numWorkers() * step)
          store(&partials[(b * groupSize + h) * width + c],
                ofBlock<V>(b, &weights[h * headStride + *wave * weightStride], &values[c], n));
  }

  // Of rows below n of block b.
  template <class V>
  V ofBlock(unsigned b, const float *weight, const half *value, unsigned n) const {
    const unsigned stop = minimum((b + 1) * blockSize, n);
    V sum{};
    unsigned p = b * blockSize;
    for (; p + 2 <= stop; p += 2) { // two to a pass, which has a price of its own
      sum += weight[p] * load<V>(value + p * width);
      sum += weight[p + 1] * load<V>(value + (p + 1) * width);
    }
    if (p < stop)
      sum += weight[p] * load<V>(value + p * width);
    return sum;
  }
};

// Adds the blocks of one wave to the accumulator, ascending; the first wave starts from +0.
struct FoldBlocks : poplar::MultiVertex {
  poplar::Input<unsigned> wave;
  FloatsIn partials;       // [nBlocks][groupSize][width]
  FloatsInOut accumulator; // [groupSize][width]
  unsigned nBlocks, groupSize, width;

  void compute(unsigned worker) {
    for (unsigned i = worker * nLanes; i < groupSize * width; i += numWorkers() * nLanes) {
      Lanes sum{};
      if (*wave != 0)
        sum = loadLanes(&accumulator[i]);
      for (unsigned b = 0; b != nBlocks; ++b)
        sum += loadLanes(&partials[b * groupSize * width + i]);
      storeLanes(&accumulator[i], sum);
    }
  }
};

} // namespace sparq
