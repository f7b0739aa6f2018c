// SPDX-License-Identifier: Apache-2.0
//
// Softmax before its division: weights exp(score - maximum) and the lane sum of each block of 64
// (contract E3, E5).

inline void softmaxWeights(const SoftmaxWeights &a) {
  constexpr std::size_t linesEach = 8; // asked for beside each block
  constexpr unsigned step = severalVectors * width, maxVectors = 16 / width;
  const Vec most = broadcast(a.maximum);
  Lanes lanes[4];
  for (std::size_t block = 0; block * blockSize < a.n; ++block) {
    float *at = a.scores + block * blockSize;
    fetchEarly(a.next, linesEach);
    Lanes sum{};
    IntVec largest[maxVectors] = {};
#pragma GCC unroll 4
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
      __builtin_memcpy(a.maxima + block * 16, largest, sizeof(largest));
    lanes[block % 4] = sum;
    if (block % 4 == 3)
      treeSums(lanes, a.blockSums + block - 3);
  }
  const std::size_t blocks = a.n / blockSize, rest = blocks % 4;
  if (rest) {
    for (std::size_t j = rest; j < 4; ++j)
      lanes[j] = Lanes{};
    float sums[4];
    treeSums(lanes, sums);
    for (std::size_t j = 0; j < rest; ++j)
      a.blockSums[blocks - rest + j] = sums[j];
  }
}
