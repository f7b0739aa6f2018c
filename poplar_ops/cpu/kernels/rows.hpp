// SPDX-License-Identifier: Apache-2.0
//
// Work on rows of K and V, in sequence (dense attention) or gathered (the selected positions):
// scores and weighted sums (contract E6.4), and the running sum of values.
#pragma once

#include "components.hpp"

template <bool gathered> inline const Half *rowOf(const Rows &r, std::size_t entry) {
  return r.rows + (gathered ? r.index[entry] : r.first + entry) * std::size_t(r.headDim);
}

// Where to ask for rows in sequence ahead of reading them, or 0. Into L2, which has room for them.
// (Into L1, or without a trace: measured, slower.) It may be beyond the end of the rows, so it is
// an integer.
inline std::uintptr_t aheadOf(const Rows &r, const Half *at) {
  return r.ahead ? reinterpret_cast<std::uintptr_t>(at) + r.ahead : 0;
}

// The lines of n numbers.
inline void fetchLines(std::uintptr_t at, unsigned n) {
  for (unsigned i = 0; i < n; i += 32)
    fetchLine<2>(at + i * sizeof(Half));
}

// Lanes of the dot products of H heads with N rows, one vector of eight components after the other.
// Few rows at a time, even where they are in sequence: with eight, the hardware's prefetchers lose
// the pattern and reading takes twice as long.
template <unsigned H, unsigned N, class Dim>
inline void dotRows(const float *query, const Half *const *rows, Dim d, Lanes (*sum)[4]) {
  Lanes total[H][N] = {};
  for (unsigned c = 0; c < d; c += nLanes) {
    Lanes k[N];
    for (unsigned i = 0; i < N; ++i)
      k[i] = loadHalfLanes(rows[i] + c);
    for (unsigned h = 0; h < H; ++h) {
      const Lanes q = loadLanes(query + h * d + c);
      for (unsigned i = 0; i < N; ++i)
        total[h][i] = addExactProduct(q, k[i], total[h][i]);
    }
  }
  for (unsigned h = 0; h < H; ++h)
    for (unsigned i = 0; i < N; ++i)
      sum[h][i] = total[h][i];
}

// The same for four rows. From `ahead` on as many bytes as these have are asked for, if it is not
// 0.
template <unsigned H, class Dim>
inline void dotFourRows(const float *query, const Half *const *rows, Dim d, std::uintptr_t ahead,
                        Lanes (*sum)[4]) {
#ifdef SPARQ_WIDE_VECTORS
  if constexpr (H > 1) { // two rows in a vector
    Vec total[H][2] = {};
    for (unsigned c = 0; c < d; c += nLanes) {
      if (ahead) // evenly: four rows have as many lines as there are steps
        fetchLine<2>(ahead + c * 4 * sizeof(Half));
      const Vec k[2] = {loadTwoHalfLanes(rows[0] + c, rows[1] + c),
                        loadTwoHalfLanes(rows[2] + c, rows[3] + c)};
      for (unsigned h = 0; h < H; ++h) {
        const Vec q = loadLanesTwice(query + h * d + c);
        for (unsigned i = 0; i < 2; ++i)
          total[h][i] = addExactProduct(q, k[i], total[h][i]);
      }
    }
    for (unsigned h = 0; h < H; ++h)
      for (unsigned i = 0; i < 2; ++i) {
        sum[h][2 * i] = firstLanes(total[h][i]);
        sum[h][2 * i + 1] = secondLanes(total[h][i]);
      }
    return;
  }
#endif
  if (ahead)
    fetchLines(ahead, 4 * d);
  // With one head, its query stays in registers.
  constexpr unsigned together = H == 1 ? 1 : 2;
#pragma GCC unroll 4
  for (unsigned i = 0; i < 4; i += together) {
    Lanes part[H][4];
    dotRows<H, together>(query, rows + i, d, part);
    for (unsigned h = 0; h < H; ++h)
      for (unsigned j = 0; j < together; ++j)
        sum[h][i + j] = part[h][j];
  }
}

// head_dim, as a number known to the compiler.
template <unsigned d> struct FixedDim {
  constexpr operator unsigned() const { return d; }
};

using Four = float __attribute__((vector_size(16)));

// Scores of four rows from `entry` for H heads, and their largest so far.
template <unsigned H, bool gathered, class Dim>
inline void scoreRows(const RowScores &a, unsigned head, std::size_t entry, Dim d, Four *largest) {
  const Half *row[4];
  Lanes sum[H][4];
  for (unsigned i = 0; i < 4; ++i)
    row[i] = rowOf<gathered>(a.key, entry + i);
  dotFourRows<H>(a.query + head * d, row, d, gathered || head ? 0 : aheadOf(a.key, row[0]), sum);
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
template <bool gathered>
inline void scoreRow(const RowScores &a, unsigned head, std::size_t entry) {
  const unsigned d = a.key.headDim;
  const Half *row = rowOf<gathered>(a.key, entry);
  Lanes sum[4] = {};
  for (unsigned c = 0; c < d; c += nLanes)
    sum[0] = addExactProduct(loadLanes(a.query + head * d + c), loadHalfLanes(row + c), sum[0]);
  float dot[4];
  treeSums(sum, dot);
  const float score = dot[0] * a.scale;
  a.scores[head * a.scoreStride + entry] = score;
  a.maximum[head] = score > a.maximum[head] ? score : a.maximum[head];
}

// A block of at most 64 rows, H heads.
template <unsigned H, bool gathered, class Dim>
inline void scoreBlock(const RowScores &a, unsigned head, std::size_t begin, std::size_t end,
                       Dim d) {
  std::size_t e = begin;
  Four largest[H];
  for (unsigned h = 0; h < H; ++h)
    largest[h] = Four{} + a.maximum[head + h];
  for (; e + 4 <= end; e += 4)
    scoreRows<H, gathered>(a, head, e, d, largest);
  for (unsigned h = 0; h < H; ++h)
    for (unsigned i = 0; i < 4; ++i)
      a.maximum[head + h] =
          largest[h][i] > a.maximum[head + h] ? largest[h][i] : a.maximum[head + h];
  for (; e < end; ++e)
    for (unsigned h = head; h < head + H; ++h)
      scoreRow<gathered>(a, h, e);
}

template <bool gathered, class Dim> inline void scoreAllRows(const RowScores &a, Dim d) {
  // Where several passes over the heads are needed, the rows of a block still are in L1.
  for (std::size_t begin = 0; begin < a.key.count; begin += blockSize) {
    const std::size_t left = a.key.count - begin,
                      end = begin + (left < blockSize ? left : blockSize);
    unsigned head = 0;
    for (; head + 4 <= a.groupSize; head += 4)
      scoreBlock<4, gathered>(a, head, begin, end, d);
    if (head + 2 <= a.groupSize) {
      scoreBlock<2, gathered>(a, head, begin, end, d);
      head += 2;
    }
    if (head < a.groupSize)
      scoreBlock<1, gathered>(a, head, begin, end, d);
  }
}

template <bool gathered> inline void scoreAllRows(const RowScores &a) {
  if (a.key.headDim == 128)
    scoreAllRows<gathered>(a, FixedDim<128>());
  else if (a.key.headDim == 64)
    scoreAllRows<gathered>(a, FixedDim<64>());
  else
    scoreAllRows<gathered>(a, a.key.headDim);
}

inline void rowScores(const RowScores &a) {
  for (unsigned h = 0; h < a.groupSize; ++h)
    a.maximum[h] = -__builtin_inff();
  if (a.key.index)
    scoreAllRows<true>(a);
  else
    scoreAllRows<false>(a);
  for (unsigned h = 0; h < a.groupSize; ++h)
    for (std::size_t e = a.key.count; e % blockSize; ++e)
      a.scores[h * a.scoreStride + e] = -__builtin_inff();
}

// One block of at most 64 rows, H heads, C vectors of components from component c: partial sums
// from +0, ascending, each product rounded.
template <class V, unsigned H, unsigned C, bool gathered>
inline void sumBlock(const WeightedValues &a, unsigned head, unsigned c, std::size_t entry,
                     std::size_t n, float *to) {
  V sum[H][C] = {};
  for (std::size_t e = entry; e < entry + n; ++e) {
    const Half *row = rowOf<gathered>(a.value, e) + c;
    if (!gathered && a.value.ahead && head == 0)
      fetchLines(aheadOf(a.value, row), C * Components<V>::n);
    V v[C];
    for (unsigned j = 0; j < C; ++j)
      v[j] = Components<V>::get(row + j * Components<V>::n);
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

template <unsigned H, bool gathered>
inline void sumHeads(const WeightedValues &a, unsigned head, std::size_t entry, std::size_t n,
                     float *to) {
  // H * C sums and C values live in registers: 32 of them with AVX-512, else 16.
  constexpr unsigned most = H == 1 ? 8 : width == 16 ? 16 / H : 8 / H;
  const unsigned d = a.value.headDim;
  unsigned c = 0;
  for (; c + most * width <= d; c += most * width)
    sumBlock<Vec, H, most, gathered>(a, head, c, entry, n, to);
  for (; c + 2 * width <= d; c += 2 * width)
    sumBlock<Vec, H, 2, gathered>(a, head, c, entry, n, to);
  for (; c + width <= d; c += width)
    sumBlock<Vec, H, 1, gathered>(a, head, c, entry, n, to);
  for (; c < d; c += 8)
    sumBlock<EightComponents, H, 1, gathered>(a, head, c, entry, n, to);
}

template <bool gathered> inline void sumAllRows(const WeightedValues &a) {
  for (std::size_t entry = 0; entry < a.value.count; entry += blockSize) {
    const std::size_t left = a.value.count - entry, n = left < blockSize ? left : blockSize;
    float *to = a.sum + (a.fold ? 0 : entry / blockSize * a.groupSize * a.value.headDim);
    unsigned head = 0;
    for (; head + 4 <= a.groupSize; head += 4)
      sumHeads<4, gathered>(a, head, entry, n, to);
    if (head + 2 <= a.groupSize) {
      sumHeads<2, gathered>(a, head, entry, n, to);
      head += 2;
    }
    if (head < a.groupSize)
      sumHeads<1, gathered>(a, head, entry, n, to);
  }
}

inline void weightedValues(const WeightedValues &a) {
  if (a.value.index)
    sumAllRows<true>(a);
  else
    sumAllRows<false>(a);
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
