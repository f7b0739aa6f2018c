// SPDX-License-Identifier: Apache-2.0
//
// The output (contract E6.4, E6.5): y3 = flush(acc) / E;  y = alpha * y3 + (1 - alpha) * v_mean,
// narrowed to fp16.
#include "lanes.hpp"

namespace sparq {

// Eight components of a head: the unit in which the workers share the output, so that no two write
// one word.
struct Eight {
  unsigned head, first;
  Eight(unsigned worker, unsigned width) : head(0), first(worker * nLanes) { wrap(width); }
  void next(unsigned width) {
    first += 6 * nLanes;
    wrap(width);
  }

private:
  void wrap(unsigned width) {
    for (; first >= width; first -= width)
      ++head;
  }
};

// The left fold of the blocks of eight components.
static inline Lanes foldPartials(const float *partial, unsigned nBlocks, unsigned stride) {
  Lanes accumulator{};
  for (unsigned b = 0; b != nBlocks; ++b, partial += stride)
    accumulator += loadLanes(partial);
  return accumulator;
}

struct Combine : poplar::MultiVertex {
  poplar::Input<unsigned> filled;
  FloatsIn partials;   // [nBlocks][groupSize][width], blocks of the list of selected positions
  FloatsIn sums;       // [groupSize], E
  FloatsIn approxSums; // [groupSize], W: sum of the approximate weights of the selected positions
  FloatsIn totals;     // [groupSize], Z: of all positions
  FloatsIn valueSum;   // [width]
  HalvesOut output;    // [groupSize][width]
  unsigned nBlocks, groupSize, width;
  bool meanValue;

  void compute(unsigned worker) {
    const float count = static_cast<float>(*filled);
    for (Eight item(worker, width); item.head < groupSize; item.next(width)) {
      const unsigned h = item.head;
      const float alpha = smaller(flush(approxSums[h] / totals[h]), 1.0f);
      const float *const partial = &partials[h * width + item.first];
      Lanes y = flush(foldPartials(partial, nBlocks, groupSize * width)) / sums[h];
      if (meanValue)
        y = alpha * y + (1.0f - alpha) * (loadLanes(&valueSum[item.first]) / count);
      storeNarrow(&output[h * width + item.first], y);
    }
  }
};

// Attention over the listed positions alone (contract E11), or over all: y = y3.
struct CombineList : poplar::MultiVertex {
  FloatsIn partials; // [nBlocks][groupSize][width], blocks of the list
  FloatsIn sums;     // [groupSize]
  HalvesOut output;  // [groupSize][width]
  unsigned nBlocks, groupSize, width;

  void compute(unsigned worker) {
    for (Eight item(worker, width); item.head < groupSize; item.next(width)) {
      const unsigned at = item.head * width + item.first;
      const Lanes sum = foldPartials(&partials[at], nBlocks, groupSize * width);
      storeNarrow(&output[at], flush(sum) / sums[item.head]);
    }
  }
};

} // namespace sparq
