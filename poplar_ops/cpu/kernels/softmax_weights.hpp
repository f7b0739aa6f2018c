// SPDX-License-Identifier: Apache-2.0
//
// Softmax before its division: weights exp(score - maximum) and the lane sum of each block of 64
// (contract E3, E5).

// The sums of the blocks since the last multiple of four, up to `block`.
inline void writeBlockSums(SoftmaxWeights &a, std::size_t block) {
  Lanes lanes[4];
  float sums[4];
  for (unsigned i = 0; i < 4; ++i)
    lanes[i] = loadLanes(a.lanes[i]);
  treeSums(lanes, sums);
  for (std::size_t i = 0; i < (block - 1) % 4 + 1; ++i)
    a.blockSums[(block - 1) / 4 * 4 + i] = sums[i];
}

// The next block.
inline void softmaxBlock(SoftmaxWeights &a) {
  constexpr unsigned step = severalVectors * width, maxVectors = 16 / width;
  float *const at = a.scores + a.block * blockSize;
  const Vec most = broadcast(a.maximum);
  Lanes sum{};
  IntVec largest[maxVectors] = {};
#pragma GCC unroll 8
  for (unsigned j = 0; j < blockSize; j += step) {
    SeveralVecs x;
    for (unsigned i = 0; i < severalVectors; ++i)
      x.part[i] = load(at + j + i * width) - most;
    const SeveralVecs weight = softmaxWeight(x);
    for (unsigned i = 0; i < severalVectors; ++i) {
      store(at + j + i * width, weight.part[i]);
      const unsigned m = (j / width + i) % maxVectors;
      largest[m] = larger(bitcast<IntVec>(weight.part[i]), largest[m]);
    }
    for (unsigned i = 0; i < severalVectors; i += lanesStep / width)
      sum = addToLanes(sum, weight.part + i);
  }
  if (a.maxima)
    __builtin_memcpy(a.maxima + a.block * 16, largest, sizeof(largest));
  storeLanes(a.lanes[a.block % 4], sum);
  if (++a.block % 4 == 0)
    writeBlockSums(a, a.block);
}

// Blocks up to `end`.
inline void softmaxUntil(SoftmaxWeights &a, std::size_t end) {
  const std::size_t blocks = a.n / blockSize;
  if (a.block == blocks)
    return;
  while (a.block < end && a.block < blocks)
    softmaxBlock(a);
  if (a.block == blocks && blocks % 4)
    writeBlockSums(a, blocks);
}

inline void softmaxWeights(SoftmaxWeights &a) { softmaxUntil(a, a.n / blockSize); }
