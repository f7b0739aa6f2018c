// SPDX-License-Identifier: Apache-2.0
//
// The output (contract E6.4, E6.5): y3 = flush(acc) / E;  y = alpha * y3 + (1 - alpha) * v_mean,
// narrowed to fp16.
#include "lanes.hpp"

namespace sparq {

// Two workers never write halves of one word: each takes eight components at a time.
class Combine : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  FloatsIn partials;   // [nBlocks][groupSize][width], blocks of the list of selected positions
  FloatsIn sums;       // [groupSize], E
  FloatsIn approxSums; // [groupSize], W: sum of the approximate weights of the selected positions
  FloatsIn totals;     // [groupSize], Z: of all positions
  FloatsIn valueSum;   // [width]
  HalvesOut output;    // [groupSize][width]
  unsigned nBlocks, groupSize, width;
  bool meanValue;

  bool compute(unsigned worker) {
    const unsigned nChunks = width / nLanes;
    const float count = static_cast<float>(*filled);
    for (unsigned item = worker; item < groupSize * nChunks; item += numWorkers()) {
      const unsigned h = item / nChunks, first = item % nChunks * nLanes;
      const float ratio = flush(approxSums[h] / totals[h]);
      const float alpha = ratio < 1.0f ? ratio : 1.0f;
      Lanes accumulator{}; // the left fold of the blocks
      for (unsigned b = 0; b != nBlocks; ++b)
        accumulator += loadLanes(&partials[(b * groupSize + h) * width + first]);
      for (unsigned i = 0; i != nLanes; ++i) {
        float y = flush(accumulator[i]) / sums[h];
        if (meanValue)
          y = alpha * y + (1.0f - alpha) * (valueSum[first + i] / count);
        output[h * width + first + i] = narrow(y);
      }
    }
    return true;
  }
};

// Dense attention: y = flush(acc) / Z.
class CombineDense : public poplar::MultiVertex {
public:
  FloatsIn accumulator; // [groupSize][width]
  FloatsIn sums;        // [groupSize]
  HalvesOut output;     // [groupSize][width]
  unsigned groupSize, width;

  bool compute(unsigned worker) {
    const unsigned nChunks = width / nLanes;
    for (unsigned item = worker; item < groupSize * nChunks; item += numWorkers()) {
      const unsigned h = item / nChunks, first = item % nChunks * nLanes;
      for (unsigned c = first; c != first + nLanes; ++c)
        output[h * width + c] = narrow(flush(accumulator[h * width + c]) / sums[h]);
    }
    return true;
  }
};

} // namespace sparq
