// SPDX-License-Identifier: Apache-2.0
//
// Attention of a prompt (contract E14): products of integers of 13 and 14 bits, whose sums are
// exact in any order, between a softmax in fp32. Two integers share a lane of 32 bits, as the
// instructions that multiply them expect: two components of a key, or one component of two values.
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

// sum + a.low * b.low + a.high * b.high, in each lane.
inline IntVec addPairProducts(IntVec sum, IntVec a, IntVec b) {
#if defined(SPARQ_VNNI)
  return bitcast<IntVec>(
      _mm512_dpwssd_epi32(bitcast<__m512i>(sum), bitcast<__m512i>(a), bitcast<__m512i>(b)));
#elif defined(SPARQ_AVX512)
  return sum + bitcast<IntVec>(_mm512_madd_epi16(bitcast<__m512i>(a), bitcast<__m512i>(b)));
#elif defined(SPARQ_AVX2)
  return sum + bitcast<IntVec>(_mm256_madd_epi16(bitcast<__m256i>(a), bitcast<__m256i>(b)));
#elif defined(__SSE2__)
  using Shorts = short __attribute__((vector_size(16)));
  return sum + bitcast<IntVec>(__builtin_ia32_pmaddwd128(bitcast<Shorts>(a), bitcast<Shorts>(b)));
#else
  return sum + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

// One row of a tile. Recursion in place of an array: GCC keeps such arrays in memory.
template <unsigned n> struct TileRow {
  IntVec sum{};
  TileRow<n - 1> rest;
  inline void add(IntVec query, const IntVec *row) {
    sum = addPairProducts(sum, query, row[n - 1]);
    rest.add(query, row);
  }
  inline void put(std::int32_t *to) const {
    storeInts(to + (n - 1) * width, sum);
    rest.put(to);
  }
};
template <> struct TileRow<0> {
  inline void add(IntVec, const IntVec *) {}
  inline void put(std::int32_t *) const {}
};

template <unsigned rows, unsigned n> struct Tile {
  TileRow<n> row;
  Tile<rows - 1, n> rest;
  inline void add(const std::int32_t *queries, std::size_t stride, const IntVec *vectors) {
    row.add(IntVec{} + queries[(rows - 1) * stride], vectors);
    rest.add(queries, stride, vectors);
  }
  inline void put(std::int32_t *to, std::size_t stride) const {
    row.put(to + (rows - 1) * stride);
    rest.put(to, stride);
  }
};
template <unsigned n> struct Tile<0, n> {
  inline void add(const std::int32_t *, std::size_t, const IntVec *) {}
  inline void put(std::int32_t *, std::size_t) const {}
};

struct TileProducts {
  const std::int32_t *left; // (tileRows, leftStride) pairs
  std::size_t leftStride;
  const std::int32_t *right; // (pairs, rightStride)
  std::size_t rightStride;
  unsigned pairs;
  std::int32_t *sums; // (tileRows, sumStride) out
  std::size_t sumStride;
};

// Not inlined: with a constant number of pairs GCC unrolls the loop and spills the sums.
template <unsigned n> __attribute__((noinline)) void tile(const TileProducts &p) {
  Tile<tileRows, n> sums;
  const std::int32_t *right = p.right;
  for (unsigned pair = 0; pair < p.pairs; ++pair, right += p.rightStride) {
    IntVec vectors[n];
    for (unsigned i = 0; i < n; ++i)
      vectors[i] = loadInts(right + i * width);
    sums.add(p.left + pair, p.leftStride, vectors);
  }
  sums.put(p.sums, p.sumStride);
}

// All columns of a tile's rows; columns a multiple of the width.
inline void tiles(TileProducts p, unsigned columns) {
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

// The integers of a row (contract E14) and the step between them.
inline float roundRow(const float *row, unsigned n, float limit, std::int16_t *to) {
  Vec most{};
  for (unsigned j = 0; j < n; j += width)
    most = maximum(most, magnitude(load(row + j)));
  const float largest = largestOf(most);
  if (largest < flushThreshold) {
    __builtin_memset(to, 0, n * sizeof(*to));
    return 0.0f;
  }
  const float perUnit = limit / largest;
  for (unsigned j = 0; j < n; ++j)
    to[j] = static_cast<std::int16_t>(bitcast<unsigned>(row[j] * perUnit + integerShift));
  return largest / limit;
}

inline void promptQuery(const PromptQuery &p) {
  for (std::size_t row = 0; row < p.rows; ++row)
    p.steps[row] = roundRow(p.query + row * p.headDim, p.headDim, promptQueryLimit,
                            p.integers + row * p.headDim) *
                   p.scale;
}

// A block of keys by pairs of components, of values by pairs of positions. In such a pair are
// positions one vector apart, so that the weights of two vectors become pairs without a shuffle.
inline void promptBlock(const PromptBlock &p) {
  const unsigned d = p.headDim;
  std::int16_t *const rows = p.work;
  __builtin_memset(rows, 0, blockSize * d * sizeof(*rows));
  for (unsigned j = 0; j < blockSize; ++j)
    p.keySteps[j] = j < p.count ? roundRow(p.key + j * d, d, promptLimit, rows + j * d) : 0.0f;
  for (unsigned j = 0; j < blockSize; ++j)
    for (unsigned c = 0; c < d; c += 2)
      __builtin_memcpy(p.keyPairs + c / 2 * blockSize + j, rows + j * d + c, 4);
  __builtin_memset(rows, 0, blockSize * d * sizeof(*rows));
  for (unsigned j = 0; j < blockSize; ++j)
    p.valueSteps[j] = j < p.count ? roundRow(p.value + j * d, d, promptLimit, rows + j * d) : 0.0f;
  for (unsigned pair = 0; pair < blockSize / 2; ++pair) {
    const unsigned first = pair / width * 2 * width + pair % width;
    const std::int16_t *const low = rows + first * d, *const high = low + width * d;
    for (unsigned c = 0; c < d; ++c)
      p.valuePairs[pair * d + c] = static_cast<std::int32_t>(
          static_cast<std::uint16_t>(low[c]) | static_cast<std::uint32_t>(high[c]) << 16);
  }
}

struct PromptCells {
  const std::int32_t *keyPairs, *valuePairs;
  const float *keySteps, *valueSteps;
};

// Scores of one block to integer weights in pairs; the row's state goes on.
inline void promptSoftmax(const PromptAttention &p, const PromptCells &block, unsigned row,
                          const float *scores, unsigned seen, std::int32_t *pairs, float *step) {
  Vec x[blockVectors];
  for (unsigned i = 0; i < blockVectors; ++i)
    x[i] = load(scores + i * width) * load(block.keySteps + i * width) * p.querySteps[row];
  if (seen < blockSize) {
    float cut[blockSize];
    for (unsigned i = 0; i < blockVectors; ++i)
      store(cut + i * width, x[i]);
    for (unsigned j = seen; j < blockSize; ++j)
      cut[j] = -__builtin_inff();
    for (unsigned i = 0; i < blockVectors; ++i)
      x[i] = load(cut + i * width);
  }
  Vec most = x[0];
  for (unsigned i = 1; i < blockVectors; ++i)
    most = maximum(most, x[i]);
  const float largest = largestOf(most);
  float *const sums = p.sums + row * p.headDim;
  if (largest > p.maxima[row]) {
    const float factor = softmaxWeight(p.maxima[row] - largest);
    p.maxima[row] = largest;
    p.weightSums[row] = p.weightSums[row] * factor;
    for (unsigned c = 0; c < p.headDim; c += width)
      store(sums + c, load(sums + c) * broadcast(factor));
  }
  for (unsigned i = 0; i < blockVectors; ++i)
    x[i] = x[i] - broadcast(p.maxima[row]);
  for (unsigned i = 0; i < blockVectors; i += severalVectors)
    weightsOf<severalVectors>(x + i);
  const float zeros[nLanes] = {};
  Lanes lanes = loadLanes(zeros);
  for (unsigned i = 0; i < blockVectors; i += lanesStep / width)
    lanes = addToLanes(lanes, x + i);
  p.weightSums[row] = p.weightSums[row] + treeSum(lanes);
  most = x[0] = x[0] * load(block.valueSteps);
  for (unsigned i = 1; i < blockVectors; ++i) {
    x[i] = x[i] * load(block.valueSteps + i * width);
    most = maximum(most, x[i]);
  }
  const float largestWeight = largestOf(most);
  const bool counts = largestWeight >= promptLeast;
  const float perUnit = counts ? promptQueryLimit / largestWeight : 0.0f;
  *step = counts ? largestWeight / promptQueryLimit : 0.0f;
  for (unsigned i = 0; i < blockVectors; i += 2) {
    const BitsVec low = bitcast<BitsVec>(x[i] * perUnit + integerShift),
                  high = bitcast<BitsVec>(x[i + 1] * perUnit + integerShift);
    storeInts(pairs + i / 2 * width, bitcast<IntVec>((low & 0xFFFFu) | high << 16));
  }
}

// Rows of one head over the blocks that they see.
inline void promptAttention(const PromptAttention &p) {
  const unsigned d = p.headDim;
  for (unsigned row = 0; row < p.rows; ++row) {
    p.maxima[row] = -__builtin_inff();
    p.weightSums[row] = 0.0f;
  }
  __builtin_memset(p.sums, 0, p.rows * d * sizeof(float));
  const std::size_t end = p.position + p.rows; // behind the last position that a row sees
  std::int32_t dots[promptRowGroup * blockSize], pairs[promptRowGroup * blockSize / 2] = {};
  float partial[promptRowGroup * blockSize], steps[promptRowGroup];
  for (std::size_t begin = 0; begin < end; begin += blockSize) {
    const std::size_t pairsBefore = begin * d / 2;
    const PromptCells block{p.keyPairs + pairsBefore, p.valuePairs + pairsBefore,
                            p.keySteps + begin, p.valueSteps + begin};
    const unsigned first = begin > p.position ? static_cast<unsigned>(begin - p.position) : 0;
    for (unsigned row = first / promptRowGroup * promptRowGroup; row < p.rows;
         row += promptRowGroup) {
      const unsigned n = p.rows - row < promptRowGroup ? p.rows - row : promptRowGroup;
      for (unsigned r = 0; r < promptRowGroup; ++r)
        steps[r] = 0.0f;
      constexpr unsigned chunk = blockSize; // components whose products are summed as integers
      for (unsigned c = 0; c < d; c += chunk) {
        const unsigned pairsOfChunk = (d - c < chunk ? d - c : chunk) / 2;
        for (unsigned r = 0; r < promptRowGroup; r += tileRows)
          tiles({p.query + ((row + r) * d + c) / 2, d / 2, block.keyPairs + c / 2 * blockSize,
                 blockSize, pairsOfChunk, dots + r * blockSize, blockSize},
                blockSize);
        for (unsigned i = 0; i < n * blockSize; i += width) {
          const Vec number = __builtin_convertvector(loadInts(dots + i), Vec);
          store(partial + i, c ? load(partial + i) + number : number);
        }
      }
      for (unsigned r = 0; r < n; ++r) {
        const std::size_t last = p.position + row + r;
        if (last < begin)
          continue;
        const unsigned seen =
            last - begin + 1 < blockSize ? static_cast<unsigned>(last - begin + 1) : blockSize;
        promptSoftmax(p, block, row + r, partial + r * blockSize, seen, pairs + r * blockSize / 2,
                      steps + r);
      }
      for (unsigned r = 0; r < promptRowGroup; r += tileRows)
        tiles({pairs + r * blockSize / 2, blockSize / 2, block.valuePairs, d, blockSize / 2,
               p.valueDots + r * d, d},
              d);
      for (unsigned r = 0; r < n; ++r) {
        if (steps[r] == 0.0f)
          continue;
        float *const sums = p.sums + (row + r) * d;
        for (unsigned c = 0; c < d; c += width)
          store(sums + c,
                load(sums + c) +
                    __builtin_convertvector(loadInts(p.valueDots + r * d + c), Vec) * steps[r]);
      }
    }
  }
  for (unsigned row = 0; row < p.rows; ++row)
    for (unsigned c = 0; c < d; c += width) {
      float *const at = p.sums + row * d + c;
      const Vec sum = load(at);
      store(at, (magnitude(sum) < flushThreshold ? Vec{} : sum) / p.weightSums[row]);
    }
}
