// SPDX-License-Identifier: Apache-2.0
//
// SparQ: the share of the approximate softmax that the selected positions have (contract E6.5), as
// far as a part can sum it: the weights of its own selected positions, block by block.
#include "key_bin.hpp"

namespace sparq {

// Lane sum of each block of this part's positions, with those that are not selected counted as 0.
struct SelectedSums : poplar::MultiVertex {
  WordsIn marks;    // [partPositions / 32], one bit a position
  FloatsIn weights; // [groupSize][partPositions]
  FloatsOut sums;   // [groupSize][partPositions / 64]
  unsigned groupSize, partPositions;

  void compute(unsigned worker) {
    const unsigned nBlocks = partPositions / blockSize;
    for (unsigned block = worker; block < nBlocks; block += numWorkers()) {
      unsigned bits[piecesOfBlock], any = 0;
      for (unsigned i = 0; i != piecesOfBlock; ++i)
        any |= bits[i] = marks[block * piecesOfBlock + i];
      for (unsigned h = 0; h != groupSize; ++h) {
        float sum = 0.0f;
        if (any != 0) {
          Lanes lanes{};
          const float *weight = &weights[h * partPositions + block * blockSize];
          for (unsigned i = 0; i != piecesOfBlock; ++i, weight += pieceSize)
            for (unsigned left = bits[i]; left != 0; left &= left - 1) {
              const unsigned p = lowestOne(left);
              lanes[p % nLanes] += weight[p];
            }
          sum = treeSum(lanes);
        }
        sums[h * nBlocks + block] = sum;
      }
    }
  }
};

} // namespace sparq
