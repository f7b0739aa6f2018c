// SPDX-License-Identifier: Apache-2.0
//
// Attention of a prompt (contract E14), in two forms of one structure. With integers, products are
// those of integers of 13 and 14 bits, whose sums are exact in any order; two share a lane of 32
// bits, as the instructions that multiply them expect: two components of a key, or one component of
// two values. With floats, a lane is one number and each sum has an order of its own. Between the
// products is a softmax in fp32.
#pragma once

#include "softmax_weights.hpp"

constexpr unsigned blockVectors = blockSize / width;
// Rows of a tile of products, which has up to four vectors a row: as many sums as registers.
constexpr unsigned tileRows = width == 16 ? 6 : width == 8 ? 3 : 2;
static_assert(promptRowGroup % tileRows == 0, "a group of rows is a number of tiles");

inline IntVec loadInts(const std::int32_t *from) {
  IntVec x;
  __builtin_memcpy(&x, from, sizeof(x));
  return x;
}
inline void storeInts(std::int32_t *to, IntVec x) { __builtin_memcpy(to, &x, sizeof(x)); }
inline IntVec inPairs(BitsVec low, BitsVec high) {
  return bitcast<IntVec>((low & 0xFFFFu) | high << 16);
}

// Two integers in a lane.
struct IntegerPairs {
  using Lane = std::int32_t;
  using Vector = IntVec;
  static constexpr unsigned perLane = 2;
  static inline IntVec load(const std::int32_t *from) { return loadInts(from); }
  static inline void store(std::int32_t *to, IntVec x) { storeInts(to, x); }
  static inline IntVec spread(std::int32_t x) { return IntVec{} + x; }
  static inline Vec toFloat(IntVec x) { return __builtin_convertvector(x, Vec); }
  // sum + a.low * b.low + a.high * b.high, in each lane.
  static inline IntVec add(IntVec sum, IntVec a, IntVec b) {
#if defined(SPARQ_AVX512)
    return bitcast<IntVec>(
        _mm512_dpwssd_epi32(bitcast<__m512i>(sum), bitcast<__m512i>(a), bitcast<__m512i>(b)));
#elif defined(SPARQ_AVX2)
    return sum + bitcast<IntVec>(_mm256_madd_epi16(bitcast<__m256i>(a), bitcast<__m256i>(b)));
#elif defined(__SSE2__)
    using Shorts = short __attribute__((vector_size(16)));
    return sum + bitcast<IntVec>(__builtin_ia32_pmaddwd128(bitcast<Shorts>(a), bitcast<Shorts>(b)));
#else
    return sum + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
  }
};

// One number in a lane. Never fused: NumPy has no fused multiply-add.
struct Floats {
  using Lane = float;
  using Vector = Vec;
  static constexpr unsigned perLane = 1;
  static inline Vec load(const float *from) {
    Vec x;
    __builtin_memcpy(&x, from, sizeof(x));
    return x;
  }
  static inline void store(float *to, Vec x) { __builtin_memcpy(to, &x, sizeof(x)); }
  static inline Vec spread(float x) { return broadcast(x); }
  static inline Vec toFloat(Vec x) { return x; }
  static inline Vec add(Vec sum, Vec a, Vec b) { return sum + a * b; }
};

// One row of a tile. Recursion in place of an array: GCC keeps such arrays in memory.
template <typename Number, unsigned n> struct TileRow {
  using Vector = typename Number::Vector;
  Vector sum{};
  TileRow<Number, n - 1> rest;
  inline void add(Vector query, const Vector *row) {
    sum = Number::add(sum, query, row[n - 1]);
    rest.add(query, row);
  }
  inline void put(typename Number::Lane *to) const {
    Number::store(to + (n - 1) * width, sum);
    rest.put(to);
  }
};
template <typename Number> struct TileRow<Number, 0> {
  inline void add(typename Number::Vector, const typename Number::Vector *) {}
  inline void put(typename Number::Lane *) const {}
};

template <typename Number, unsigned rows, unsigned n> struct Tile {
  using Lane = typename Number::Lane;
  TileRow<Number, n> row;
  Tile<Number, rows - 1, n> rest;
  inline void add(const Lane *queries, std::size_t stride, const typename Number::Vector *vectors) {
    row.add(Number::spread(queries[(rows - 1) * stride]), vectors);
    rest.add(queries, stride, vectors);
  }
  inline void put(Lane *to, std::size_t stride) const {
    row.put(to + (rows - 1) * stride);
    rest.put(to, stride);
  }
};
template <typename Number, unsigned n> struct Tile<Number, 0, n> {
  using Lane = typename Number::Lane;
  inline void add(const Lane *, std::size_t, const typename Number::Vector *) {}
  inline void put(Lane *, std::size_t) const {}
};

template <typename Number> struct TileProducts {
  const typename Number::Lane *left; // (tileRows, leftStride)
  std::size_t leftStride;
  const typename Number::Lane *right; // (lanes, rightStride)
  std::size_t rightStride;
  unsigned lanes;
  typename Number::Lane *sums; // (tileRows, sumStride) out
  std::size_t sumStride;
};

// Not inlined: with a constant number of lanes GCC unrolls the loop and spills the sums.
template <unsigned n, typename Number>
__attribute__((noinline)) void tile(const TileProducts<Number> &p) {
  Tile<Number, tileRows, n> sums;
  const typename Number::Lane *right = p.right;
  for (unsigned lane = 0; lane < p.lanes; ++lane, right += p.rightStride) {
    typename Number::Vector vectors[n];
    for (unsigned i = 0; i < n; ++i)
      vectors[i] = Number::load(right + i * width);
    sums.add(p.left + lane, p.leftStride, vectors);
  }
  sums.put(p.sums, p.sumStride);
}

// All columns of a tile's rows; columns a multiple of the width.
template <typename Number> void tiles(TileProducts<Number> p, unsigned columns) {
  const auto advance = [&](unsigned n) {
    p.right += n * width;
    p.sums += n * width;
    columns -= n * width;
  };
  while (columns >= 4 * width) {
    tile<4>(p);
    advance(4);
  }
  if (columns >= 2 * width) {
    tile<2>(p);
    advance(2);
  }
  if (columns)
    tile<1>(p);
}

// How the numbers of a row become integers (contract E14).
struct RowIntegers {
  float perUnit, step;

  RowIntegers(const float *row, unsigned n, float limit) {
    Vec most{};
    for (unsigned j = 0; j < n; j += width)
      most = maximum(most, magnitude(load(row + j)));
    const float largest = largestOf(most);
    const bool flushed = largest < flushThreshold;
    perUnit = flushed ? 0.0f : limit / largest;
    step = flushed ? 0.0f : largest / limit;
  }
  // In the low 16 bits.
  BitsVec of(Vec x) const { return bitcast<BitsVec>(x * perUnit + integerShift); }
};

inline float roundRow(const float *row, unsigned n, float limit, std::int16_t *to) {
  const RowIntegers integers(row, n, limit);
  for (unsigned j = 0; j < n; ++j)
    to[j] = static_cast<std::int16_t>(bitcast<unsigned>(row[j] * integers.perUnit + integerShift));
  return integers.step;
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
    const RowIntegers lower(low, d, promptLimit), upper(high, d, promptLimit);
    p.valueSteps[first] = lower.step;
    p.valueSteps[second] = upper.step;
    for (unsigned c = 0; c < d; c += width)
      storeInts(values + c, inPairs(lower.of(load(low + c)), upper.of(load(high + c))));
  }
}

// Weights of a row to what is multiplied with values.
inline void toLanes(const float *weights, float, float *to) {
  for (unsigned i = 0; i < blockSize; i += width)
    store(to + i, load(weights + i));
}
inline void toLanes(const float *weights, float perUnit, std::int32_t *to) {
  for (unsigned i = 0; i < blockSize; i += 2 * width) {
    const BitsVec low = bitcast<BitsVec>(load(weights + i) * perUnit + integerShift),
                  high = bitcast<BitsVec>(load(weights + i + width) * perUnit + integerShift);
    storeInts(to + i / 2, inPairs(low, high));
  }
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

template <typename Number> class PromptRowsOf {
  using Lane = typename Number::Lane;
  static constexpr unsigned n = Number::perLane, blockLanes = blockSize / n;
  static constexpr bool isInteger = n == 2;
  static constexpr unsigned chunk = blockSize; // components whose products are summed by themselves
  // As vectors, and folds of four, take them.
  static constexpr unsigned roundedRows = (promptRowGroup + width - 1) / width * width;
  static_assert(roundedRows % 4 == 0, "folds of four");

public:
  explicit PromptRowsOf(const PromptAttention &of) : p(of), d(of.headDim) {
    for (unsigned row = 0; row < p.rows + width; ++row) {
      p.maxima[row] = -__FLT_MAX__; // finite: the difference of two is a number
      p.weightSums[row] = 0.0f;
    }
    __builtin_memset(p.sums, 0, p.rows * d * sizeof(float));
  }

  void attend() {
    const std::size_t end = p.position + p.rows; // behind the last position that a row sees
    const std::size_t hidden = p.window && p.position >= p.window ? p.position + 1 - p.window : 0;
    std::size_t begin = hidden / blockSize * blockSize;
    if (p.below > 0.0f) { // first the blocks that no row leaves out
      attend(0, 0, p.rows);
      const std::size_t own = p.position / blockSize * blockSize;
      for (begin = own > blockSize ? own - blockSize : blockSize; begin < end; begin += blockSize)
        attend(begin, 0, nearEnd(begin));
      for (begin = 0; (begin ? begin : blockSize) + 2 * blockSize < end;
           begin += blockSize * blockSize)
        attendFar(begin, end);
    } else {
      for (; begin < end; begin += blockSize)
        attend(begin, 0, p.rows);
    }
    for (unsigned row = 0; row < p.rows; ++row)
      for (unsigned c = 0; c < d; c += width) {
        float *const at = p.sums + row * d + c;
        const Vec sum = load(at);
        store(at, (magnitude(sum) < flushThreshold ? Vec{} : sum) / p.weightSums[row]);
      }
  }

private:
  const PromptAttention &p;
  const unsigned d;
  // No vector of theirs lies in two lines of the cache: a call takes some 3 % less time.
  alignas(64) Lane dots[promptRowGroup * blockSize];
  alignas(64) Lane weights[promptRowGroup * blockLanes] = {};
  alignas(64) float partial[promptRowGroup * blockSize]; // scores of a block, then its weights
  // Of the rows of a group: what their sums so far are multiplied with, the largest weight as an
  // integer divided by the largest weight, and the inverse.
  alignas(64) float factors[roundedRows], perUnit[roundedRows], steps[roundedRows];
  alignas(64) Lane queries[promptRowGroup * promptHeadDim]; // of rows that are not side by side
  // Rows whose weights wait for their values.
  struct {
    unsigned row;
    float factor, step;
  } weighted[promptRowGroup];
  unsigned nWeighted = 0;

  // Of the rows of a group.
  struct State {
    float *maxima, *weightSums, *limits;
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
      multiplyKeys(at(p.query, row), promptRowGroup, p.keys, block);
      unsigned rows[promptRowGroup];
      for (unsigned i = 0; i < promptRowGroup; ++i)
        rows[i] = row + i;
      const unsigned end = row + promptRowGroup < last ? promptRowGroup : last - row;
      weigh(block, rows, row < first ? first - row : 0, end,
            {p.maxima + row, p.weightSums + row, p.limits + row});
    }
    if (nWeighted)
      addValues(block);
  }

  // Far blocks, blockSize of them: rows whose estimate reaches their limit.
  void attendFar(std::size_t begin, std::size_t end) {
    const std::size_t last = begin + blockSize * blockSize;
    for (unsigned row = nearEnd(begin) / promptRowGroup * promptRowGroup; row < p.rows;
         row += promptRowGroup)
      estimate(begin, row);
    for (std::size_t block = begin ? begin : blockSize; block < last && block + 2 * blockSize < end;
         block += blockSize) {
      const float *const estimates = p.estimates + (block - begin) / blockSize;
      unsigned rows[promptRowGroup], nRows = 0;
      for (unsigned r = nearEnd(block); r < p.rows; ++r) {
        if (estimates[r * blockSize] < p.limits[r])
          continue;
        rows[nRows++] = r;
        if (nRows == promptRowGroup) {
          attendSome(block, rows, nRows);
          nRows = 0;
        }
      }
      if (nRows)
        attendSome(block, rows, nRows);
      if (nWeighted)
        addValues(block);
    }
  }

  // What a group of rows may expect of blockSize blocks: the mean of the scores of each and half of
  // their variance, or what the score of the key that stands apart gives alone.
  void estimate(std::size_t begin, unsigned row) {
    const std::size_t of = begin / blockSize * promptSummaries; // of their means
    const unsigned end = row + promptRowGroup < p.rows ? row + promptRowGroup : p.rows;
    for (unsigned i = 0; i < promptSummaries; ++i) {
      const std::size_t summary = of + i * blockSize;
      const bool isVariance = i == 1;
      multiplyKeys(at(isVariance ? p.spreads : p.query, row), promptRowGroup, p.summaries, summary);
      for (unsigned r = row; r < end; ++r) {
        const float step = (isVariance ? p.spreadSteps : p.querySteps)[r];
        scaled(p.summarySteps + summary, step, r - row);
        float *const to = p.estimates + r * blockSize;
        const float *const from = partial + (r - row) * blockSize;
        for (unsigned j = 0; j < blockSize; j += width) {
          const Vec x = load(from + j);
          store(to + j, i == 0       ? x
                        : isVariance ? load(to + j) + x
                                     : maximum(load(to + j), x - lnBlock));
        }
      }
    }
  }

  // Up to a group of rows, all of whom see the whole block.
  void attendSome(std::size_t block, const unsigned *rows, unsigned nRows) {
    alignas(64) float maxima[roundedRows] = {}, weightSums[roundedRows], limits[roundedRows];
    for (unsigned i = 0; i < roundedRows; ++i)
      weightSums[i] = 1.0f;
    for (unsigned i = 0; i < nRows; ++i) {
      __builtin_memcpy(queries + i * (d / n), at(p.query, rows[i]), d / n * sizeof(Lane));
      maxima[i] = p.maxima[rows[i]];
      weightSums[i] = p.weightSums[rows[i]];
    }
    multiplyKeys(queries, nRows, p.keys, block);
    weigh(block, rows, 0, nRows, {maxima, weightSums, limits});
    for (unsigned i = 0; i < nRows; ++i) {
      p.maxima[rows[i]] = maxima[i];
      p.weightSums[rows[i]] = weightSums[i];
      p.limits[rows[i]] = limits[i];
    }
  }

  const Lane *at(const void *rows, unsigned row) const {
    return static_cast<const Lane *>(rows) + row * d / n;
  }

  // Products of the rows of a group from `begin` to `end` to weights that wait for their values.
  void weigh(std::size_t block, const unsigned *rows, unsigned begin, unsigned end,
             const State &of) {
    alignas(64) float largest[roundedRows];
    Lanes lanes[roundedRows] = {};
    for (unsigned i = 0; i < roundedRows; ++i)
      largest[i] = -__builtin_inff();
    for (unsigned i = begin; i < end; ++i)
      lanes[i] = scores(block, rows[i], i);
    for (unsigned i = 0; i < promptRowGroup; i += 4)
      largestOfFour(lanes + i, largest + i);
    unsigned taken[promptRowGroup], nTaken = 0;
    for (unsigned i = 0; i < promptRowGroup; ++i)
      if (i >= begin && i < end && largest[i] != -__builtin_inff()) // or not a number
        taken[nTaken++] = i;
      else
        largest[i] = -__builtin_inff();
    raise(of, largest);
    softmax(block, of, taken, nTaken);
    for (unsigned i = 0; i < nTaken; ++i) {
      const unsigned inGroup = taken[i];
      toLanes(partial + inGroup * blockSize, perUnit[inGroup], weights + nWeighted * blockLanes);
      weighted[nWeighted++] = {rows[inGroup], factors[inGroup], steps[inGroup]};
      if (nWeighted == promptRowGroup)
        addValues(block);
    }
  }

  // Scores of a row of the group; returns lanes with the largest one.
  Lanes scores(std::size_t block, unsigned row, unsigned inGroup) {
    float *const numbers = partial + inGroup * blockSize;
    Vec most = scaled(p.keySteps + block, p.querySteps[row], inGroup);
    const Seen seen = seenBy(p.position + row, block, p.window);
    if (seen.begin > 0 || seen.end < blockSize) {
      for (unsigned j = 0; j < blockSize; ++j)
        if (j < seen.begin || j >= seen.end)
          numbers[j] = -__builtin_inff();
      most = load(numbers);
      for (unsigned i = width; i < blockSize; i += width)
        most = maximum(most, load(numbers + i));
    }
    return largestLanes(most);
  }

  // Products of a row of the group times their steps; returns the largest of each lane.
  Vec scaled(const float *keySteps, float queryStep, unsigned inGroup) {
    float *const numbers = partial + inGroup * blockSize;
    const Lane *const last = dots + inGroup * blockSize;
    const Vec step = broadcast(queryStep);
    const bool isOneChunk = d <= chunk;
    Vec most = broadcast(-__builtin_inff());
#pragma GCC unroll 16
    for (unsigned i = 0; i < blockSize; i += width) {
      Vec x = Number::toFloat(Number::load(last + i));
      if (!isOneChunk)
        x = load(numbers + i) + x;
      if (isInteger)
        x = x * load(keySteps + i);
      x = x * step;
      most = maximum(most, x);
      store(numbers + i, x);
    }
    return most;
  }

  // The largest scores of a group's rows in a block: those above the maxima so far replace them.
  void raise(const State &of, const float *largest) {
    for (unsigned i = 0; i < roundedRows; i += width) {
      const Vec before = load(of.maxima + i), now = maximum(before, load(largest + i));
      Vec factor[1] = {before - now};
      weightsOf<1>(factor);
      store(of.maxima + i, now);
      store(of.weightSums + i, load(of.weightSums + i) * factor[0]);
      store(factors + i, factor[0]);
    }
  }

  // Scores of rows to weights, of integers times the steps of values. Each part is done for all
  // rows: it is a chain of dependent operations, and those of other rows fill the time.
  void softmax(std::size_t block, const State &of, const unsigned *taken, unsigned nTaken) {
    Lanes lanes[roundedRows] = {}, most[roundedRows] = {};
    const float *const valueSteps = p.valueSteps + block;
    for (unsigned i = 0; i < nTaken; ++i) {
      float *const numbers = partial + taken[i] * blockSize;
      const Vec largest = broadcast(of.maxima[taken[i]]);
      Lanes ofRow{};
      Vec mostOfRow{};
#pragma GCC unroll 8
      for (unsigned j = 0; j < blockVectors; j += severalVectors) {
        Vec x[severalVectors];
#pragma GCC unroll 4
        for (unsigned v = 0; v < severalVectors; ++v)
          x[v] = load(numbers + (j + v) * width) - largest;
        weightsOf<severalVectors>(x);
#pragma GCC unroll 4
        for (unsigned v = 0; v < severalVectors; v += lanesStep / width)
          ofRow = addToLanes(ofRow, x + v);
#pragma GCC unroll 4
        for (unsigned v = 0; v < severalVectors; ++v) {
          if (isInteger)
            x[v] = x[v] * load(valueSteps + (j + v) * width);
          mostOfRow = maximum(mostOfRow, x[v]);
          store(numbers + (j + v) * width, x[v]);
        }
      }
      lanes[taken[i]] = ofRow;
      most[taken[i]] = largestLanes(mostOfRow);
    }
    alignas(64) float sums[roundedRows], largest[roundedRows];
    for (unsigned i = 0; i < roundedRows; i += 4) {
      treeSums(lanes + i, sums + i);
      largestOfFour(most + i, largest + i);
    }
    for (unsigned i = 0; i < roundedRows; i += width) {
      float *const at = of.weightSums + i;
      const Vec sum = load(at) + load(sums + i), peak = load(largest + i);
      store(at, sum);
      const auto isLeast = peak < promptLeast;
      store(perUnit + i, isLeast ? Vec{} : promptQueryLimit / peak);
      store(steps + i, isLeast ? Vec{} : peak / promptQueryLimit);
      // Below the logarithm of the sum, rounded down to a power of two, by `below` (contract E16).
      const IntVec exponent = bitcast<IntVec>(bitcast<BitsVec>(sum) >> 23) - 127;
      store(of.limits + i,
            load(of.maxima + i) + __builtin_convertvector(exponent, Vec) * ln2 - p.below);
    }
  }

  // Sums of products of promptRowGroup rows: of the last chunk to `dots`, of others to `partial`.
  void multiplyKeys(const Lane *rows, unsigned nRows, const void *blocks, std::size_t block) {
    const Lane *const keys = static_cast<const Lane *>(blocks) + block * d / n;
    for (unsigned c = 0; c < d; c += chunk) {
      const unsigned lanes = (d - c < chunk ? d - c : chunk) / n;
      for (unsigned r = 0; r < nRows; r += tileRows)
        tiles<Number>({rows + (r * d + c) / n, d / n, keys + c / n * blockSize, blockSize, lanes,
                       dots + r * blockSize, blockSize},
                      blockSize);
      for (unsigned i = 0; c + chunk < d && i < nRows * blockSize; i += width) {
        const Vec number = Number::toFloat(Number::load(dots + i));
        store(partial + i, c ? load(partial + i) + number : number);
      }
    }
  }

  // Weighted values to the sums of their rows.
  void addValues(std::size_t block) {
    const Lane *const values = static_cast<const Lane *>(p.values) + block * d / n;
    auto *const valueDots = static_cast<Lane *>(p.valueDots);
    for (unsigned r = 0; r < nWeighted; r += tileRows)
      tiles<Number>(
          {weights + r * blockLanes, blockLanes, values, d, blockLanes, valueDots + r * d, d}, d);
    const unsigned n = d;
    for (unsigned r = 0; r < nWeighted; ++r) {
      float *const sums = p.sums + weighted[r].row * n;
      const Lane *const added = valueDots + r * n;
      const Vec factor = broadcast(weighted[r].factor), step = broadcast(weighted[r].step);
      for (unsigned c = 0; c < n; c += width) {
        Vec more = Number::toFloat(Number::load(added + c));
        if (isInteger)
          more = more * step;
        store(sums + c, load(sums + c) * factor + more);
      }
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
