// SPDX-License-Identifier: Apache-2.0
//
// Attention of a prompt (contract E14), in two forms of one structure. With integers, products are
// those of integers of 13 and 14 bits, whose sums are exact in any order; two share a lane of 32
// bits, as the instructions that multiply them expect: two components of a key, or one component of
// two values. With floats, a lane is one number and each sum has an order of its own. Between the
// products is a softmax in fp32.
#pragma once

#include "softmax_weights.hpp"
#include "tile_products.hpp"

constexpr unsigned blockVectors = blockSize / width;
static_assert(promptRowGroup % tileRows == 0, "a group of rows is a number of tiles");

inline float largestOfRow(const float *row, unsigned n) {
  Vec most{};
  for (unsigned j = 0; j < n; j += width)
    most = maximum(most, magnitude(load(row + j)));
  return largestOf(most);
}

// Values to integers: steps are powers of two, whose logarithms are added to scores.
struct ValueIntegers {
  float perUnit, log, inverse;

  ValueIntegers(const float *row, unsigned n) {
    const float largest = largestOfRow(row, n);
    const bool flushed = largest < flushThreshold;
    const unsigned exponent = bitcast<unsigned>(flushed ? flushThreshold / 2 : largest) >> 23;
    log = static_cast<float>(static_cast<int>(exponent) - 138);
    inverse = bitcast<float>((265 - exponent) << 23);
    perUnit = flushed ? 0.0f : inverse;
  }
  // In the low 16 bits.
  BitsVec of(Vec x) const { return bitcast<BitsVec>(x * perUnit + integerShift); }
};

// Queries and keys to integers; returns the step between them.
inline float roundRow(const float *row, unsigned n, float limit, std::int16_t *to) {
  const float largest = largestOfRow(row, n);
  const bool flushed = largest < flushThreshold;
  const float perUnit = flushed ? 0.0f : limit / largest;
  for (unsigned j = 0; j < n; ++j)
    to[j] = static_cast<std::int16_t>(bitcast<unsigned>(row[j] * perUnit + integerShift));
  return flushed ? 0.0f : largest / limit;
}

inline void promptQuery(const PromptQuery &p) {
  for (std::size_t row = 0; row < p.rows; ++row)
    p.steps[row] = roundRow(p.query + row * p.headDim, p.headDim, promptQueryLimit,
                            p.integers + row * p.headDim) *
                   p.scale;
}

// n rows (n, lanes) of 32 bits to columns of (lanes, blockSize).
template <unsigned n> inline void turn(const void *rows, unsigned lanes, void *columns) {
  constexpr std::size_t bytes = 4;
  const auto *const from = static_cast<const char *>(rows);
  auto *const to = static_cast<char *>(columns);
  for (std::size_t lane = 0; lane < lanes; ++lane)
    for (std::size_t j = 0; j < n; ++j)
      __builtin_memcpy(to + (lane * blockSize + j) * bytes, from + (j * lanes + lane) * bytes,
                       bytes);
}

// The first of the keys of a block that have the least product with their mean (contract E16).
inline unsigned keyApart(const float *keys, unsigned d, const float *mean) {
  alignas(64) float along[blockSize];
  for (unsigned j = 0; j < blockSize; j += 4) {
    Lanes lanes[4] = {};
    for (unsigned i = 0; i < 4; ++i)
      for (unsigned c = 0; c < d; c += lanesStep) {
        Vec x[lanesStep / width];
        for (unsigned v = 0; v < lanesStep / width; ++v)
          x[v] = load(keys + (j + i) * d + c + v * width) * load(mean + c + v * width);
        lanes[i] = addToLanes(lanes[i], x);
      }
    treeSums(lanes, along + j);
  }
  unsigned apart = 0;
  for (unsigned j = 1; j < blockSize; ++j)
    apart = along[j] < along[apart] ? j : apart;
  return apart;
}

// Mean and variance of a block's keys and the key that stands apart: a column of those of blockSize
// blocks (contract E16).
inline void summarise(const PromptBlock &p) {
  const unsigned d = p.headDim;
  alignas(64) float rows[2 * promptHeadDim];
  float *const mean = rows, *const variance = rows + d;
  for (unsigned c = 0; c < d; c += width) {
    Vec sum{}, squares{};
    for (unsigned j = 0; j < blockSize; ++j)
      sum = sum + load(p.key + j * d + c);
    sum = sum * (1.0f / blockSize);
    for (unsigned j = 0; j < blockSize; ++j) {
      const Vec difference = load(p.key + j * d + c) - sum;
      squares = squares + difference * difference;
    }
    store(mean + c, sum);
    store(variance + c, squares * (1.0f / blockSize));
  }
  const float *const each[promptSummaries] = {mean, variance, p.key + keyApart(p.key, d, mean) * d};
  for (unsigned i = 0; i < promptSummaries; ++i) {
    const unsigned lanes = p.integers ? d / 2 : d;
    if (p.integers)
      p.summarySteps[i * blockSize] = roundRow(each[i], d, promptLimit, p.work);
    turn<1>(p.integers ? static_cast<const void *>(p.work) : each[i], lanes,
            p.summary + i * blockSize * lanes);
  }
}

// A block of keys by lanes of components, of values by lanes of positions. Two positions of a lane
// are one vector apart, so that the weights of two vectors become pairs without a shuffle.
inline void promptBlock(const PromptBlock &p) {
  const unsigned d = p.headDim;
  if (p.summary)
    summarise(p);
  if (!p.integers) {
    turn<blockSize>(p.key, d, p.keys);
    __builtin_memcpy(p.values, p.value, blockSize * d * sizeof(float));
    return;
  }
  for (unsigned j = 0; j < blockSize; ++j)
    p.keySteps[j] = roundRow(p.key + j * d, d, promptLimit, p.work + j * d);
  turn<blockSize>(p.work, d / 2, p.keys);
  auto *values = static_cast<std::int32_t *>(p.values);
  for (unsigned pair = 0; pair < blockSize / 2; ++pair, values += d) {
    const unsigned first = pair / width * 2 * width + pair % width, second = first + width;
    const float *const low = p.value + first * d, *const high = p.value + second * d;
    const ValueIntegers lower(low, d), upper(high, d);
    p.valueLogs[first] = lower.log;
    p.valueLogs[second] = upper.log;
    p.inverses[first] = lower.inverse;
    p.inverses[second] = upper.inverse;
    for (unsigned c = 0; c < d; c += width)
      storeInts(values + c, inPairs(lower.of(load(low + c)), upper.of(load(high + c))));
  }
}

// Coefficients of polynomials that are 2^x, and 2^x times the largest integer of a weight, from the
// highest power (contract E14).
struct Power {
  static constexpr float of[] = {0x1.42d588p-13f,
                                 0x1.5f595ap-10f,
                                 0x1.3b2c76p-7f,
                                 0x1.c6aeb2p-5f,
                                 0x1.ebfbdcp-3f,
                                 0x1.62e43p-1f,
                                 1.0f};
};
struct IntegerPower {
  static constexpr float of[] = {0x1.c2940cp+8f, 0x1.effcd4p+10f, 0x1.62eae2p+12f, 8191.0f};
};

// 2^x of n vectors of numbers <= 0, 0 below the least exponent. Written out in turns as `weightsOf`
// is.
template <typename Polynomial, unsigned n> inline void powersOf(Vec *x) {
  Vec t[n], whole[n], rest[n], p[n];
  for (unsigned i = 0; i < n; ++i)
    t[i] = x[i] + integerShift;
  for (unsigned i = 0; i < n; ++i)
    whole[i] = t[i] - integerShift;
  for (unsigned i = 0; i < n; ++i)
    rest[i] = x[i] - whole[i];
  for (unsigned i = 0; i < n; ++i)
    p[i] = broadcast(Polynomial::of[0]);
#pragma GCC unroll 8
  for (unsigned k = 1; k < sizeof(Polynomial::of) / sizeof(float); ++k)
    for (unsigned i = 0; i < n; ++i)
      p[i] = p[i] * rest[i] + Polynomial::of[k];
  for (unsigned i = 0; i < n; ++i)
    x[i] = weightOf(x[i], promptLeast, p[i], t[i], whole[i]);
}

// n vectors of weights of a row to what is multiplied with values.
template <unsigned n> inline void putWeights(const Vec *weights, float *to) {
  for (unsigned i = 0; i < n; ++i)
    store(to + i * width, weights[i]);
}
template <unsigned n> inline void putWeights(const Vec *weights, std::int32_t *to) {
  for (unsigned i = 0; i < n; i += 2)
    storeInts(to + i / 2 * width, inPairs(bitcast<BitsVec>(weights[i] + integerShift),
                                          bitcast<BitsVec>(weights[i + 1] + integerShift)));
}

// Positions of a block that a row sees.
struct Seen {
  unsigned begin, end;
};

inline Seen seenBy(std::size_t position, std::size_t block, std::size_t window) {
  if (position < block)
    return {0, 0};
  const std::size_t n = position - block + 1;
  const std::size_t begin = window && n > window ? n - window : 0;
  return {begin < blockSize ? static_cast<unsigned>(begin) : blockSize,
          n < blockSize ? static_cast<unsigned>(n) : blockSize};
}

// Half of the variance of a block's scores to what it adds to their mean: from `from` on it grows
// with the deviation, not with its square, as the largest of 64 numbers does (contract E16).
inline Vec spreadOf(Vec half, float from) {
  return half < from ? half : squareRoot(half * (4.0f * from)) - from;
}

template <typename Number> class PromptRowsOf {
  using Lane = typename Number::Lane;
  static constexpr unsigned n = Number::perLane, blockLanes = blockSize / n;
  static constexpr bool isInteger = n == 2;
  static constexpr unsigned chunk = blockSize; // components whose products are summed by themselves
  // As vectors, and folds of four, take them.
  static constexpr unsigned roundedRows = (promptRowGroup + width - 1) / width * width;
  static_assert(roundedRows % 4 == 0, "folds of four");
  static constexpr unsigned nSums = promptLanes / width; // vectors that a sum of weights has

public:
  explicit PromptRowsOf(const PromptAttention &of) : p(of), d(of.headDim) {
    for (unsigned row = 0; row < p.rows + width; ++row)
      p.maxima[row] = -__FLT_MAX__; // finite: the difference of two is a number
    __builtin_memset(p.weightSums, 0, p.rows * promptLanes * sizeof(float));
    __builtin_memset(p.sums, 0, p.rows * d * sizeof(float));
  }

  void attend() {
    const std::size_t end = p.position + p.rows; // behind the last position that a row sees
    const std::size_t hidden = p.window && p.position >= p.window ? p.position + 1 - p.window : 0;
    std::size_t begin = hidden / blockSize * blockSize;
    if (p.share > 0.0f) { // first the blocks that no row leaves out
      attend(0, 0, p.rows);
      const std::size_t own = p.position / blockSize * blockSize;
      for (begin = own > blockSize ? own - blockSize : blockSize; begin < end; begin += blockSize)
        attend(begin, 0, nearEnd(begin));
      attendFar(farEnd(p.rows - 1));
    } else {
      for (; begin < end; begin += blockSize)
        attend(begin, 0, p.rows);
    }
    for (unsigned row = 0; row < p.rows; row += 4) {
      const unsigned rows[] = {row, row + 1, row + 2, row + 3};
      const unsigned nRows = row + 4 < p.rows ? 4 : p.rows - row;
      float weights[4];
      sumsOfWeights(rows, nRows, weights);
      for (unsigned i = 0; i < nRows; ++i)
        for (unsigned c = 0; c < d; c += width) {
          float *const at = p.sums + (row + i) * d + c;
          const Vec mean = load(at) / weights[i];
          store(at, magnitude(mean) < flushThreshold ? Vec{} : mean);
        }
    }
  }

private:
  const PromptAttention &p;
  const unsigned d;
  // No vector of theirs lies in two lines of the cache: a call takes some 3 % less time.
  alignas(64) Lane weights[promptRowGroup * blockLanes] = {};
  alignas(64) float partial[promptRowGroup * blockSize]; // scores of a block
  // Of the rows of a group: what their sums so far and those of a block are multiplied with.
  alignas(64) float factors[roundedRows], gains[roundedRows];
  alignas(64) Lane queries[promptRowGroup * promptHeadDim]; // of rows that are not side by side
  float zeros[blockSize] = {};
  // Rows whose weights wait for their values.
  struct {
    unsigned row;
    float factor, gain;
  } weighted[promptRowGroup];
  unsigned nWeighted = 0;

  // Products of keys to scores, or to what sums of later chunks are added to.
  template <bool isFirst, bool isLast> struct Scores {
    float *to; // (rows, blockSize)
    const float *keySteps, *querySteps, *added;
    inline void operator()(unsigned row, unsigned column, Vec x) const {
      float *const at = to + row * blockSize + column;
      if (!isFirst)
        x = load(at) + x;
      if (isLast && isInteger)
        x = x * load(keySteps + column);
      if (isLast)
        x = x * broadcast(querySteps[row]);
      store(at, isLast && isInteger ? x + load(added + column) : x);
    }
  };

  // Weighted values to the sums of their rows.
  struct Values {
    float *sums[tileRows]; // null: not a row
    float factors[tileRows], gains[tileRows];
    inline void operator()(unsigned row, unsigned column, Vec x) const {
      float *const at = sums[row] + column;
      if (sums[row])
        store(at, load(at) * broadcast(factors[row]) + x * broadcast(gains[row]));
    }
  };

  // Behind the last row that is in the block or in the next one.
  unsigned nearEnd(std::size_t block) const {
    const std::size_t end = block + 2 * blockSize;
    return end <= p.position           ? 0
           : end - p.position < p.rows ? static_cast<unsigned>(end - p.position)
                                       : p.rows;
  }

  // Rows from `first` to `last`, those that see any of a block.
  void attend(std::size_t block, unsigned first, unsigned last) {
    if (block > p.position + first)
      first = static_cast<unsigned>(block - p.position);
    for (unsigned row = first / promptRowGroup * promptRowGroup; row < last;
         row += promptRowGroup) {
      multiplyKeys(at(p.query, row), promptRowGroup, p.querySteps + row, p.keys, p.keySteps,
                   p.valueLogs + block, block);
      unsigned rows[promptRowGroup];
      for (unsigned i = 0; i < promptRowGroup; ++i)
        rows[i] = row + i;
      const unsigned end = row + promptRowGroup < last ? promptRowGroup : last - row;
      weigh(block, rows, row < first ? first - row : 0, end, p.maxima + row);
    }
    if (nWeighted)
      addValues(block);
  }

  // The number behind the last block that is far from a row; of those before it the first is near.
  std::size_t farEnd(unsigned row) const {
    const std::size_t own = (p.position + row) / blockSize;
    return own ? own - 1 : 0;
  }

  // Each far block with the rows that do not leave it out.
  void attendFar(std::size_t end) {
    if (end <= 1)
      return;
    __builtin_memset(p.isRead, 0, p.rows * p.blockStride);
    for (unsigned row = 0; row < p.rows; row += promptRowGroup) {
      for (std::size_t first = 0; first < end; first += blockSize)
        estimate(first, row);
      for (unsigned i = 0; i < promptRowGroup && row + i < p.rows; ++i)
        choose(row + i, p.estimates + 2 * i * p.blockStride);
    }
    for (std::size_t block = 1; block < end; ++block) {
      unsigned rows[promptRowGroup], nRows = 0;
      for (unsigned row = 0; row < p.rows; ++row) {
        if (!p.isRead[row * p.blockStride + block])
          continue;
        rows[nRows++] = row;
        if (nRows == promptRowGroup) {
          attendSome(block * blockSize, rows, nRows);
          nRows = 0;
        }
      }
      if (nRows)
        attendSome(block * blockSize, rows, nRows);
      if (nWeighted)
        addValues(block * blockSize);
    }
  }

  // What a group of rows may expect of blockSize blocks, a high and a low estimate: the mean of the
  // scores of each and what their variance adds, or what the key that stands apart has alone.
  void estimate(std::size_t first, unsigned row) {
    const std::size_t of = first * promptSummaries; // of their means
    for (unsigned i = 0; i < promptSummaries; ++i) {
      const bool isVariance = i == 1;
      multiplyKeys(at(isVariance ? p.spreads : p.query, row), promptRowGroup,
                   (isVariance ? p.spreadSteps : p.querySteps) + row, p.summaries, p.summarySteps,
                   zeros, of + i * blockSize);
      for (unsigned r = 0; r < promptRowGroup; ++r) {
        float *const high = p.estimates + 2 * r * p.blockStride + first;
        float *const low = high + p.blockStride;
        const float *const from = partial + r * blockSize;
        for (unsigned j = 0; j < blockSize; j += width) {
          const Vec x = load(from + j), before = load(high + j);
          store(high + j, i == 0       ? x
                          : isVariance ? before + spreadOf(x, 16.0f)
                                       : maximum(before, x - promptLogBlock));
          store(low + j, i == 0       ? x
                         : isVariance ? before + spreadOf(x, 2.0f)
                                      : maximum(load(low + j), x - promptLogBlock));
        }
      }
    }
  }

  // Marks the far blocks that a row does not leave out (contract E16), by high estimates and, after
  // them, low ones.
  void choose(unsigned row, float *high) {
    const std::size_t end = farEnd(row);
    if (end <= 1)
      return;
    float *const low = high + p.blockStride;
    high[0] = low[0] = -__FLT_MAX__;
    for (std::size_t j = end; j % promptLanes; ++j)
      high[j] = low[j] = -__FLT_MAX__;
    Vec largest = broadcast(p.maxima[row]);
    for (std::size_t j = 0; j < end; j += width)
      largest = maximum(largest, load(high + j));
    const float top = largestOf(largest);
    toWeights(high, end, top);
    toWeights(low, end, top);
    Vec gain[1] = {broadcast(p.maxima[row] - top)};
    powersOf<Power, 1>(gain);
    alignas(64) float near[width];
    store(near, gain[0]);
    float weights[4];
    sumsOfWeights(&row, 1, weights);
    const float all = sumBelow(low, end, __builtin_inff()) * blockSize +
                      weights[0] * (isInteger ? 1.0f / 8191.0f : 1.0f) * near[0];
    float limit = all * p.share;
    while (sumBelow(high, end, limit) * blockSize > all * 0.125f)
      limit *= 0.5f;
    for (std::size_t j = 1; j < end; ++j)
      p.isRead[row * p.blockStride + j] = !(high[j] < limit);
  }

  // Logarithms to weights relative to the largest one.
  static void toWeights(float *x, std::size_t end, float top) {
    for (std::size_t j = 0; j < end; j += promptLanes) {
      Vec weights[nSums];
      for (unsigned v = 0; v < nSums; ++v)
        weights[v] = load(x + j + v * width) - top;
      powersOf<Power, nSums>(weights);
      for (unsigned v = 0; v < nSums; ++v)
        store(x + j + v * width, weights[v]);
    }
  }

  // The sum of the weights below a limit.
  static float sumBelow(const float *weights, std::size_t end, float limit) {
    Vec sums[nSums]{};
    for (std::size_t j = 0; j < end; j += promptLanes)
      for (unsigned v = 0; v < nSums; ++v) {
        const Vec x = load(weights + j + v * width);
        sums[v] = sums[v] + (x < limit ? x : Vec{});
      }
    alignas(64) float lanes[promptLanes];
    for (unsigned v = 0; v < nSums; ++v)
      store(lanes + v * width, sums[v]);
    const Lanes four[4] = {loadLanes(lanes) + loadLanes(lanes + promptLanes / 2)};
    float sum[4];
    treeSums(four, sum);
    return sum[0];
  }

  // Up to a group of rows, all of whom see the whole block.
  void attendSome(std::size_t block, const unsigned *rows, unsigned nRows) {
    alignas(64) float maxima[roundedRows] = {}, steps[promptRowGroup] = {};
    for (unsigned i = 0; i < nRows; ++i) {
      __builtin_memcpy(queries + i * (d / n), at(p.query, rows[i]), d / n * sizeof(Lane));
      maxima[i] = p.maxima[rows[i]];
      steps[i] = p.querySteps[rows[i]];
    }
    multiplyKeys(queries, nRows, steps, p.keys, p.keySteps, p.valueLogs + block, block);
    weigh(block, rows, 0, nRows, maxima);
    for (unsigned i = 0; i < nRows; ++i)
      p.maxima[rows[i]] = maxima[i];
  }

  const Lane *at(const void *rows, unsigned row) const {
    return static_cast<const Lane *>(rows) + row * d / n;
  }

  // Scores of rows of the group, from `begin` to `end`, to weights that wait for their values.
  void weigh(std::size_t block, const unsigned *rows, unsigned begin, unsigned end, float *maxima) {
    alignas(64) float largest[roundedRows];
    Lanes lanes[roundedRows] = {};
    for (unsigned i = 0; i < roundedRows; ++i)
      largest[i] = -__builtin_inff();
    for (unsigned i = begin; i < end; ++i)
      lanes[i] = largestScores(seenBy(p.position + rows[i], block, p.window), i);
    for (unsigned i = 0; i < promptRowGroup; i += 4)
      largestOfFour(lanes + i, largest + i);
    for (unsigned i = 0; i < roundedRows; ++i)
      if (i < begin || i >= end)
        largest[i] = -__builtin_inff();
    raise(maxima, largest);
    for (unsigned i = begin; i < end; ++i) {
      if (largest[i] == -__builtin_inff()) // not so of what is not a number
        continue;
      softmax(block, i, rows[i], largest[i]);
      weighted[nWeighted++] = {rows[i], factors[i], gains[i]};
      if (nWeighted == promptRowGroup)
        addValues(block);
    }
  }

  // Lanes with the largest score of a row of the group.
  Lanes largestScores(Seen seen, unsigned inGroup) {
    float *const scores = partial + inGroup * blockSize;
    for (unsigned j = 0; j < seen.begin; ++j)
      scores[j] = -__builtin_inff();
    for (unsigned j = seen.end; j < blockSize; ++j)
      scores[j] = -__builtin_inff();
    Vec most = load(scores);
#pragma GCC unroll 16
    for (unsigned j = width; j < blockSize; j += width)
      most = maximum(most, load(scores + j));
    return largestLanes(most);
  }

  // The largest scores of a group's rows in a block: those above the maxima so far replace them.
  void raise(float *maxima, const float *largest) {
    for (unsigned i = 0; i < roundedRows; i += width) {
      const Vec before = load(maxima + i), of = load(largest + i), now = maximum(before, of);
      Vec powers[2] = {before - now, of - now};
      powersOf<Power, 2>(powers);
      store(maxima + i, now);
      store(factors + i, powers[0]);
      store(gains + i, powers[1]);
    }
  }

  // Scores of a row to weights, relative to the largest one of the block.
  void softmax(std::size_t block, unsigned inGroup, unsigned row, float most) {
    const float *const scores = partial + inGroup * blockSize, *const inverses = p.inverses + block;
    Vec sums[nSums]{};
#pragma GCC unroll 8
    for (unsigned j = 0; j < blockVectors; j += severalVectors) {
      Vec x[severalVectors];
#pragma GCC unroll 4
      for (unsigned v = 0; v < severalVectors; ++v)
        x[v] = load(scores + (j + v) * width) - most;
      if constexpr (isInteger)
        powersOf<IntegerPower, severalVectors>(x);
      else
        powersOf<Power, severalVectors>(x);
#pragma GCC unroll 4
      for (unsigned v = 0; v < severalVectors; ++v)
        sums[(j + v) % nSums] =
            sums[(j + v) % nSums] + (isInteger ? x[v] * load(inverses + (j + v) * width) : x[v]);
      putWeights<severalVectors>(x, weights + nWeighted * blockLanes + j * width / n);
    }
    float *const to = p.weightSums + row * promptLanes;
    for (unsigned i = 0; i < nSums; ++i)
      store(to + i * width, load(to + i * width) * factors[inGroup] + sums[i] * gains[inGroup]);
  }

  // Sums of the weights of up to four rows.
  void sumsOfWeights(const unsigned *rows, unsigned nRows, float *to) const {
    Lanes lanes[4] = {};
    for (unsigned i = 0; i < nRows; ++i) {
      const float *const from = p.weightSums + rows[i] * promptLanes;
      lanes[i] = loadLanes(from) + loadLanes(from + promptLanes / 2);
    }
    treeSums(lanes, to);
  }

  // Scores of nRows rows of the group.
  void multiplyKeys(const Lane *rows, unsigned nRows, const float *querySteps, const void *blocks,
                    const float *keySteps, const float *added, std::size_t block) {
    const Lane *const keys = static_cast<const Lane *>(blocks) + block * d / n;
    for (unsigned r = 0; r < nRows; r += tileRows) {
      float *const to = partial + r * blockSize;
      const float *const ofKeys = keySteps + block, *const ofRows = querySteps + r;
      for (unsigned c = 0; c < d; c += chunk) {
        const bool isLast = c + chunk >= d;
        const TileProducts<Number> products{(rows + (r * d + c) / n), d / n,
                                            keys + c / n * blockSize, blockSize,
                                            (isLast ? d - c : chunk) / n};
        if (c == 0 && isLast)
          tiles(products, blockSize, Scores<true, true>{to, ofKeys, ofRows, added});
        else if (c == 0)
          tiles(products, blockSize, Scores<true, false>{to, ofKeys, ofRows, added});
        else if (isLast)
          tiles(products, blockSize, Scores<false, true>{to, ofKeys, ofRows, added});
        else
          tiles(products, blockSize, Scores<false, false>{to, ofKeys, ofRows, added});
      }
    }
  }

  // Weighted values to the sums of their rows.
  void addValues(std::size_t block) {
    const Lane *const values = static_cast<const Lane *>(p.values) + block * d / n;
    for (unsigned r = 0; r < nWeighted; r += tileRows) {
      Values to{};
      for (unsigned i = 0; i < tileRows && r + i < nWeighted; ++i) {
        to.sums[i] = p.sums + weighted[r + i].row * d;
        to.factors[i] = weighted[r + i].factor;
        to.gains[i] = weighted[r + i].gain;
      }
      tiles<Number>({weights + r * blockLanes, blockLanes, values, d, blockLanes}, d, to);
    }
    nWeighted = 0;
  }
};

// Rows of one head over the blocks that they see.
inline void promptAttention(const PromptAttention &p) {
  if (p.integers)
    PromptRowsOf<IntegerPairs>(p).attend();
  else
    PromptRowsOf<Floats>(p).attend();
}
