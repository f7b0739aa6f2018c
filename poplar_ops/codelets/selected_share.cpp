// SPDX-License-Identifier: Apache-2.0
//
// SparQ: the share of the approximate softmax that the selected positions have (contract E6.5), as
// far as a part can sum it: the weights of its own selected positions, block by block.
#include "key_topk.hpp"

namespace sparq {

// Lane sum of each block of this part's positions, with those that are not selected counted as 0.
class SelectedSums : public poplar::MultiVertex {
public:
  WordsIn marks;       // [partPositions / 32][2], of this part: see MarkKeys
  FloatsIn counts;     // [nPieces][2], of the slot
  FloatsIn tiesToTake; // [1], everyTie where all are taken
  FloatsIn weights;    // [groupSize][partPositions]
  FloatsOut sums;      // [groupSize][partPositions / 64]
  unsigned groupSize, partPositions, part, length, nWaves, tailLength, tailFirst, nWaveParts;

  bool compute(unsigned worker) {
    constexpr unsigned pieces = blockSize / pieceSize;
    const unsigned nBlocks = partPositions / blockSize;
    for (unsigned block = worker; block < nBlocks; block += numWorkers()) {
      unsigned bits[pieces], any = 0;
      for (unsigned i = 0; i != pieces; ++i)
        any |= bits[i] = selected(block * pieces + i);
      for (unsigned h = 0; h != groupSize; ++h) {
        float sum = 0.0f;
        if (any != 0) {
          Lanes lanes{};
          const float *weight = &weights[h * partPositions + block * blockSize];
          for (unsigned i = 0; i != pieces; ++i, weight += pieceSize)
            for (unsigned left = bits[i]; left != 0; left &= left - 1) {
              const unsigned p = lowestOne(left);
              lanes[p % nLanes] += weight[p];
            }
          sum = treeSum(lanes);
        }
        sums[h * nBlocks + block] = sum;
      }
    }
    return true;
  }

private:
  // The positions of a piece that are selected, one bit each.
  unsigned selected(unsigned piece) const {
    const unsigned above = marks[piece * 2], equal = marks[piece * 2 + 1];
    if (equal == 0 || tiesToTake[0] >= everyTie)
      return above | equal;
    const unsigned place = inOrder(piece);
    float before = 0.0f;
    for (unsigned i = 0; i != place; ++i)
      before += counts[i * 2 + 1];
    return above | firstTies(equal, tiesToTake[0] - before);
  }

  // The place of this part's piece among those of the slot, ascending by position.
  unsigned inOrder(unsigned piece) const {
    const unsigned perWave = length / pieceSize, perTail = tailLength / pieceSize;
    const unsigned inWaves = nWaves * perWave;
    if (piece < inWaves)
      return piece / perWave * perWave * nWaveParts + part * perWave + piece % perWave;
    return inWaves * nWaveParts + (part - tailFirst) * perTail + (piece - inWaves);
  }
};

} // namespace sparq
