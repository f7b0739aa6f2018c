// SPDX-License-Identifier: Apache-2.0
//
// Work on rows of K and V, in sequence (dense attention) or gathered (the selected positions):
// scores and weighted sums (contract E6.4), and the running sum of values.
#pragma once

#include "components.hpp"
#include "row_codes.hpp"

// A row of fp16 numbers, from component `first` on. As of CodedRow, loads may pass its end.
struct HalfRow {
  const Half *at;
  HalfRow(const unsigned char *row, const float *, std::size_t, unsigned first, unsigned)
      : at(reinterpret_cast<const Half *>(row) + first) {}
  static constexpr unsigned bytes(unsigned headDim) { return headDim * sizeof(Half); }
  Vec vec(unsigned c) const { return loadHalf(at + c); }
};

template <class V, class Row> inline V componentsOf(const Row &row, unsigned c) {
  if constexpr (sizeof(V) == sizeof(Vec))
    return row.vec(c);
  else
    return lanesOf(row, c);
}

// Rows from entry `begin` on.
template <class Row, class Dim> struct Block {
  const Rows r;
  const std::size_t begin;
  const Dim d;
  const unsigned char *at(std::size_t entry) const {
    return r.rows + (r.index ? r.index[entry] : r.first + entry) * Row::bytes(d);
  }
  Row row(std::size_t entry, unsigned c = 0) const {
    return Row(at(entry), r.factors, entry - begin, c, d);
  }
  // Asks for rows ahead of reading these: the lines of n components from c on of one, in sequence.
  // It may be beyond their end, so it is an integer. Into L2, which has room for them. (Into L1, or
  // without a trace: measured, slower.)
  void fetchAhead(std::size_t entry, unsigned c, unsigned n) const {
    const std::uintptr_t from = reinterpret_cast<std::uintptr_t>(at(entry)) + r.ahead;
    for (unsigned i = 0; i < Row::bytes(n); i += 64)
      fetchLine<2>(from + Row::bytes(c) + i);
  }
};

template <class Use> inline auto withDim(unsigned headDim, const Use &use) {
  return headDim == 128 ? use(Fixed<128>()) : headDim == 64 ? use(Fixed<64>()) : use(headDim);
}

// Calls `use(block, end)` for each block of entries. The factors of coded rows are made once for
// all heads. Where several passes over the heads are needed, the rows of a block still are in L1.
template <class Dim, class Use> inline void eachBlock(const Rows &r, Dim d, const Use &use) {
  for (std::size_t begin = 0; begin < r.count; begin += blockSize) {
    const std::size_t left = r.count - begin, end = begin + (left < blockSize ? left : blockSize);
    if (!r.factors) {
      use(Block<HalfRow, Dim>{r, begin, d}, end);
      continue;
    }
    Rows ofBlock = r;
    if (r.ahead) // scales are read a block before the codes
      ofBlock.ahead += blockSize * codedRow(d);
    const Block<CodedRow<false>, Dim> block{ofBlock, begin, d};
    bool isSmall = false;
    for (std::size_t e = begin; e < end; ++e) {
      rowFactors(block.at(e), d, r.factors + (e - begin) * 2 * nRowScales(d));
      isSmall |= hasSmallScale(block.at(e), d);
    }
    if (isSmall)
      use(Block<CodedRow<true>, Dim>{ofBlock, begin, d}, end);
    else
      use(block, end);
  }
}

// Lanes of the dot products of H heads with four rows from `entry` on. Few rows at a time, even
// where they are in sequence: with eight, the hardware's prefetchers lose the pattern and reading
// takes twice as long.
template <unsigned H, class Row, class Dim>
inline void dotFourRows(const float *query, const Block<Row, Dim> &block, std::size_t entry,
                        bool fetches, Lanes (*sum)[4]) {
  const Dim d = block.d;
  const Row row[4] = {block.row(entry), block.row(entry + 1), block.row(entry + 2),
                      block.row(entry + 3)};
#ifdef SPARQ_WIDE_VECTORS
  Lanes single[4] = {};
  Vec total[H][2] = {};
  for (unsigned c = 0; c < d; c += width) {
    if (fetches) // evenly
      block.fetchAhead(entry, 4 * c, 4 * width);
    Vec x[4];
    for (unsigned i = 0; i < 4; ++i)
      x[i] = row[i].vec(c);
    for (unsigned part = 0; part < 2 && c + part * nLanes < d; ++part) {
      if constexpr (H == 1) {
        const Lanes q = loadLanes(query + c + part * nLanes);
        for (unsigned i = 0; i < 4; ++i)
          single[i] = addExactProduct(q, part ? secondLanes(x[i]) : firstLanes(x[i]), single[i]);
        continue;
      }
      const Vec k[2] = {part ? secondHalves(x[0], x[1]) : firstHalves(x[0], x[1]),
                        part ? secondHalves(x[2], x[3]) : firstHalves(x[2], x[3])};
      for (unsigned h = 0; h < H; ++h) { // two rows in a vector
        const Vec q = loadLanesTwice(query + h * d + c + part * nLanes);
        for (unsigned i = 0; i < 2; ++i)
          total[h][i] = addExactProduct(q, k[i], total[h][i]);
      }
    }
  }
  for (unsigned h = 0; h < H; ++h)
    for (unsigned i = 0; i < 4; ++i)
      sum[h][i] = H == 1  ? single[i]
                  : i % 2 ? secondLanes(total[h][i / 2])
                          : firstLanes(total[h][i / 2]);
#else
  if (fetches)
    block.fetchAhead(entry, 0, 4 * d);
  // With one head, its query stays in registers.
  constexpr unsigned together = H == 1 ? 1 : 2;
#pragma GCC unroll 4
  for (unsigned i = 0; i < 4; i += together) {
    Lanes total[H][together] = {};
    for (unsigned c = 0; c < d; c += nLanes) {
      Lanes k[together];
      for (unsigned j = 0; j < together; ++j)
        k[j] = lanesOf(row[i + j], c);
      for (unsigned h = 0; h < H; ++h) {
        const Lanes q = loadLanes(query + h * d + c);
        for (unsigned j = 0; j < together; ++j)
          total[h][j] = addExactProduct(q, k[j], total[h][j]);
      }
    }
    for (unsigned h = 0; h < H; ++h)
      for (unsigned j = 0; j < together; ++j)
        sum[h][i + j] = total[h][j];
  }
#endif
}

using Four = float __attribute__((vector_size(16)));

// Scores of four rows from `entry` for H heads, and their largest so far.
template <unsigned H, class RowBlock>
inline void scoreRows(const RowScores &a, const RowBlock &block, unsigned head, std::size_t entry,
                      Four *largest) {
  Lanes sum[H][4];
  dotFourRows<H>(a.query + head * block.d, block, entry, head == 0 && block.r.ahead, sum);
  for (unsigned h = 0; h < H; ++h) {
    float dots[4];
    treeSums(sum[h], dots);
    Four score;
    __builtin_memcpy(&score, dots, sizeof(score));
    score = score * a.scale;
    __builtin_memcpy(a.scores + (head + h) * a.scoreStride + entry, &score, sizeof(score));
    largest[h] = score > largest[h] ? score : largest[h];
  }
}

// Scores of the last rows, one at a time.
template <class RowBlock>
inline void scoreRow(const RowScores &a, const RowBlock &block, unsigned head, std::size_t entry) {
  const unsigned d = a.key.headDim;
  const auto row = block.row(entry);
  Lanes sum[4] = {};
  for (unsigned c = 0; c < d; c += nLanes)
    sum[0] = addExactProduct(loadLanes(a.query + head * d + c), lanesOf(row, c), sum[0]);
  float dot[4];
  treeSums(sum, dot);
  const float score = dot[0] * a.scale;
  a.scores[head * a.scoreStride + entry] = score;
  a.maximum[head] = score > a.maximum[head] ? score : a.maximum[head];
}

// A block of at most 64 rows, H heads.
template <unsigned H, class RowBlock>
inline void scoreBlock(const RowScores &a, const RowBlock &block, unsigned head, std::size_t end) {
  std::size_t e = block.begin;
  Four largest[H];
  for (unsigned h = 0; h < H; ++h)
    largest[h] = Four{} + a.maximum[head + h];
  for (; e + 4 <= end; e += 4)
    scoreRows<H>(a, block, head, e, largest);
  for (unsigned h = 0; h < H; ++h)
    for (unsigned i = 0; i < 4; ++i)
      a.maximum[head + h] =
          largest[h][i] > a.maximum[head + h] ? largest[h][i] : a.maximum[head + h];
  for (; e < end; ++e)
    for (unsigned h = head; h < head + H; ++h)
      scoreRow(a, block, h, e);
}

inline void rowScores(const RowScores &a) {
  for (unsigned h = 0; h < a.groupSize; ++h)
    a.maximum[h] = -__builtin_inff();
  withDim(a.key.headDim, [&](auto d) {
    eachBlock(a.key, d, [&](const auto &block, std::size_t end) {
      eachHeads(a.groupSize, [&](auto count, unsigned head) {
        scoreBlock<unsigned(count)>(a, block, head, end);
      });
    });
  });
  for (unsigned h = 0; h < a.groupSize; ++h)
    for (std::size_t e = a.key.count; e % blockSize; ++e)
      a.scores[h * a.scoreStride + e] = -__builtin_inff();
}

// One block of at most 64 rows, H heads, C vectors of components from component c: partial sums
// from +0, ascending, each product rounded.
template <class V, unsigned H, unsigned C, class RowBlock>
inline void sumBlock(const WeightedValues &a, const RowBlock &block, unsigned head, unsigned c,
                     std::size_t end, float *to) {
  V sum[H][C] = {};
  const bool fetches = head == 0 && block.r.ahead;
  for (std::size_t e = block.begin; e < end; ++e) {
    const auto row = block.row(e, c);
    if (fetches)
      block.fetchAhead(e, c, C * Components<V>::n);
    V v[C];
    for (unsigned j = 0; j < C; ++j)
      v[j] = componentsOf<V>(row, j * Components<V>::n);
    for (unsigned h = 0; h < H; ++h) {
      const float w = a.weights[(head + h) * a.weightStride + e];
      for (unsigned j = 0; j < C; ++j)
        sum[h][j] = sum[h][j] + w * v[j];
    }
  }
  for (unsigned h = 0; h < H; ++h)
    for (unsigned j = 0; j < C; ++j) {
      float *at = to + (head + h) * a.value.headDim + c + j * Components<V>::n;
      Components<V>::put(at, a.fold ? Components<V>::get(at) + sum[h][j] : sum[h][j]);
    }
}

template <unsigned H, class RowBlock>
inline void sumHeads(const WeightedValues &a, const RowBlock &block, unsigned head, std::size_t end,
                     float *to) {
  // H * C sums and C values live in registers: 32 of them with AVX-512, else 16.
  constexpr unsigned most = H == 1 ? 8 : width == 16 ? 16 / H : 8 / H;
  const unsigned d = a.value.headDim;
  unsigned c = 0;
  for (; c + most * width <= d; c += most * width)
    sumBlock<Vec, H, most>(a, block, head, c, end, to);
  for (; c + 2 * width <= d; c += 2 * width)
    sumBlock<Vec, H, 2>(a, block, head, c, end, to);
  for (; c + width <= d; c += width)
    sumBlock<Vec, H, 1>(a, block, head, c, end, to);
  for (; c < d; c += 8)
    sumBlock<EightComponents, H, 1>(a, block, head, c, end, to);
}

inline void weightedValues(const WeightedValues &a) {
  withDim(a.value.headDim, [&](auto d) {
    eachBlock(a.value, d, [&](const auto &block, std::size_t end) {
      float *to = a.sum + (a.fold ? 0 : block.begin / blockSize * a.groupSize * d);
      eachHeads(a.groupSize, [&](auto count, unsigned head) {
        sumHeads<unsigned(count)>(a, block, head, end, to);
      });
    });
  });
}

template <class V>
inline unsigned addComponents(const Half *rows, std::size_t n, unsigned headDim, unsigned c,
                              float *sum) {
  for (; c + Components<V>::n <= headDim; c += Components<V>::n) {
    V total = Components<V>::get(sum + c);
    for (std::size_t e = 0; e < n; ++e)
      total = total + Components<V>::get(rows + e * headDim + c);
    Components<V>::put(sum + c, total);
  }
  return c;
}

inline void addRows(const Half *rows, std::size_t n, unsigned headDim, float *sum) {
  addComponents<EightComponents>(rows, n, headDim, addComponents<Vec>(rows, n, headDim, 0, sum),
                                 sum);
}
