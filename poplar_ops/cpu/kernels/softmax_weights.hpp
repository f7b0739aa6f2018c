// SPDX-License-Identifier: Apache-2.0
//
// Softmax before its division: weights exp(score - maximum) and the lane sum of each block of 64
// (contract E3, E5); and the merit of a position, softmax summed over the heads of a group
// (contract E6.3).

// Lines [begin, end) of each column, into L2.
inline void fetch(const Ahead &ahead, std::size_t begin, std::size_t end) {
  constexpr int read = 0, intoL2 = 2;
  for (unsigned j = 0; j < ahead.n; ++j)
    for (std::size_t line = begin; line < end; ++line)
      __builtin_prefetch(ahead.columns[j] + line * 32, read, intoL2);
}

inline void softmaxWeights(float *scores, std::size_t n, float maximum, float *blockSums,
                           const Ahead *ahead) {
  const Vec most = broadcast(maximum);
  Lanes lanes[4];
  // The same number of lines beside each block, until all are fetched.
  const std::size_t lines = ahead ? (ahead->positions + 31) / 32 : 0;
  const std::size_t linesEach = n ? (lines * blockSize + n - 1) / n : 0;
  for (std::size_t block = 0; block * blockSize < n; ++block) {
    float *at = scores + block * blockSize;
    if (block * linesEach < lines) {
      const std::size_t end = (block + 1) * linesEach;
      fetch(*ahead, block * linesEach, end < lines ? end : lines);
    }
    Lanes sum{};
#pragma GCC unroll 8
    for (unsigned j = 0; j < blockSize; j += lanesStep) {
      Vec weight[lanesStep / width];
      for (unsigned v = 0; v < lanesStep / width; ++v) {
        weight[v] = softmaxWeight<Vec>(load(at + j + v * width) - most);
        store(at + j + v * width, weight[v]);
      }
      sum = addToLanes(sum, weight);
    }
    lanes[block % 4] = sum;
    if (block % 4 == 3)
      treeSums(lanes, blockSums + block - 3);
  }
  const std::size_t blocks = n / blockSize, rest = blocks % 4;
  if (rest) {
    for (std::size_t j = rest; j < 4; ++j)
      lanes[j] = Lanes{};
    float sums[4];
    treeSums(lanes, sums);
    for (std::size_t j = 0; j < rest; ++j)
      blockSums[blocks - rest + j] = sums[j];
  }
}

inline IntVec larger(IntVec a, IntVec b) { return a > b ? a : b; }

inline void groupKeys(const GroupKeys &a) {
  constexpr unsigned vectors = 16 / width; // of 16 positions
  for (std::size_t at = a.begin; at < a.end; at += blockSize) {
    IntVec most[vectors] = {};
    for (unsigned part = 0; part < blockSize; part += 16) {
      for (unsigned v = 0; v < vectors; ++v) {
        const std::size_t p = at + part + v * width;
        Vec key{};
        for (unsigned h = 0; h < a.groupSize; ++h)
          key = key + load(a.weights + h * a.weightStride + p) / broadcast(a.weightSum[h]);
        // A merit is +0 or more; the mask matters for NaN only, whose sign would spoil the order of
        // bit patterns.
        const IntVec bits = bitcast<IntVec>(bitcast<BitsVec>(key) & 0x7FFFFFFFu);
        __builtin_memcpy(a.keys + p, &bits, sizeof(bits));
        most[v] = larger(bits, most[v]);
      }
    }
    __builtin_memcpy(a.maxima + at / blockSize * 16, most, sizeof(most));
  }
}
