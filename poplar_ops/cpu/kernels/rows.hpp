// SPDX-License-Identifier: Apache-2.0
//
// Work on rows of K and V, in sequence (dense attention) or gathered (the selected positions):
// scores and weighted sums (contract E6.4), and the running sum of values.
#pragma once

#include "components.hpp"
#include "row_codes.hpp"

// How rows come: decoded ones of 8 bits are fp32 numbers.
enum class Access { inSequence, gathered, decoded };
template <Access> struct NumberOf {
  using type = Half;
};
template <> struct NumberOf<Access::decoded> {
  using type = float;
};
template <Access how> using Row = const typename NumberOf<how>::type *;

template <Access how> inline Row<how> rowOf(const Rows &r, std::size_t entry) {
  return reinterpret_cast<Row<how>>(r.rows) +
         (how == Access::gathered ? r.index[entry] : r.first + entry) * std::size_t(r.headDim);
}

inline Lanes lanesOf(const Half *from) { return loadHalfLanes(from); }
inline Lanes lanesOf(const float *from) { return loadLanes(from); }

// Where to ask for rows in sequence ahead of reading them, or 0. Into L2, which has room for them.
// (Into L1, or without a trace: measured, slower.) It may be beyond the end of the rows, so it is
// an integer.
inline std::uintptr_t aheadOf(const Rows &r, const void *at) {
  return r.ahead ? reinterpret_cast<std::uintptr_t>(at) + r.ahead : 0;
}

// The lines of n numbers.
inline void fetchLines(std::uintptr_t at, unsigned n) {
  for (unsigned i = 0; i < n; i += 32)
    fetchLine<2>(at + i * sizeof(Half));
}

template <class Use> inline auto withDim(unsigned headDim, const Use &use) {
  return headDim == 128 ? use(Fixed<128>()) : headDim == 64 ? use(Fixed<64>()) : use(headDim);
}

// Calls `use(rows, begin, end)` for each block of entries, with its rows of 8 bits decoded: once
// for all heads, into memory that stays in the first cache.
template <class Dim, class Use> inline void eachDecodedBlock(const Rows &r, Dim d, const Use &use) {
  const unsigned bytes = codedRow(r.headDim);
  for (std::size_t begin = 0; begin < r.count; begin += blockSize) {
    const std::size_t left = r.count - begin, n = left < blockSize ? left : blockSize;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t at = r.index ? r.index[begin + i] : r.first + begin + i;
      const unsigned char *const row = r.rows + at * bytes;
      for (unsigned c = 0; r.ahead && c < bytes; c += 64)
        fetchLine<2>(reinterpret_cast<std::uintptr_t>(row) + r.ahead + c);
      decodeRow(row, d, r.work + i * d);
    }
    use(Rows{reinterpret_cast<unsigned char *>(r.work), r.headDim, nullptr, 0 - begin, n}, begin,
        begin + n);
  }
}

// Lanes of the dot products of H heads with N rows, one vector of eight components after the other.
// Few rows at a time, even where they are in sequence: with eight, the hardware's prefetchers lose
// the pattern and reading takes twice as long.
template <unsigned H, unsigned N, class Number, class Dim>
inline void dotRows(const float *query, const Number *const *rows, Dim d, Lanes (*sum)[4]) {
  Lanes total[H][N] = {};
  for (unsigned c = 0; c < d; c += nLanes) {
    Lanes k[N];
    for (unsigned i = 0; i < N; ++i)
      k[i] = lanesOf(rows[i] + c);
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
template <unsigned H, class Number, class Dim>
inline void dotFourRows(const float *query, const Number *const *rows, Dim d, std::uintptr_t ahead,
                        Lanes (*sum)[4]) {
#ifdef SPARQ_WIDE_VECTORS
  if constexpr (H > 1) { // two rows in a vector
    Vec total[H][2] = {};
    for (unsigned c = 0; c < d; c += nLanes) {
      if (ahead) // evenly: four rows have as many lines as there are steps
        fetchLine<2>(ahead + c * 4 * sizeof(Half));
      const Vec k[2] = {loadTwoLanes(rows[0] + c, rows[1] + c),
                        loadTwoLanes(rows[2] + c, rows[3] + c)};
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

using Four = float __attribute__((vector_size(16)));

// Scores of four rows from `entry` for H heads, and their largest so far.
template <unsigned H, Access how, class Dim>
inline void scoreRows(const RowScores &a, unsigned head, std::size_t entry, Dim d, Four *largest) {
  Row<how> row[4];
  Lanes sum[H][4];
  for (unsigned i = 0; i < 4; ++i)
    row[i] = rowOf<how>(a.key, entry + i);
  dotFourRows<H>(a.query + head * d, row, d,
                 how != Access::inSequence || head ? 0 : aheadOf(a.key, row[0]), sum);
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
template <Access how> inline void scoreRow(const RowScores &a, unsigned head, std::size_t entry) {
  const unsigned d = a.key.headDim;
  const Row<how> row = rowOf<how>(a.key, entry);
  Lanes sum[4] = {};
  for (unsigned c = 0; c < d; c += nLanes)
    sum[0] = addExactProduct(loadLanes(a.query + head * d + c), lanesOf(row + c), sum[0]);
  float dot[4];
  treeSums(sum, dot);
  const float score = dot[0] * a.scale;
  a.scores[head * a.scoreStride + entry] = score;
  a.maximum[head] = score > a.maximum[head] ? score : a.maximum[head];
}

// A block of at most 64 rows, H heads.
template <unsigned H, Access how, class Dim>
inline void scoreBlock(const RowScores &a, unsigned head, std::size_t begin, std::size_t end,
                       Dim d) {
  std::size_t e = begin;
  Four largest[H];
  for (unsigned h = 0; h < H; ++h)
    largest[h] = Four{} + a.maximum[head + h];
  for (; e + 4 <= end; e += 4)
    scoreRows<H, how>(a, head, e, d, largest);
  for (unsigned h = 0; h < H; ++h)
    for (unsigned i = 0; i < 4; ++i)
      a.maximum[head + h] =
          largest[h][i] > a.maximum[head + h] ? largest[h][i] : a.maximum[head + h];
  for (; e < end; ++e)
    for (unsigned h = head; h < head + H; ++h)
      scoreRow<how>(a, h, e);
}

template <Access how, class Dim>
inline void scoreHeads(const RowScores &a, std::size_t begin, std::size_t end, Dim d) {
  eachHeads(a.groupSize, [&](auto count, unsigned head) {
    scoreBlock<unsigned(count), how>(a, head, begin, end, d);
  });
}

template <class Dim> inline void scoreAllRows(const RowScores &a, Dim d) {
  RowScores of = a;
  if (a.key.work)
    return eachDecodedBlock(a.key, d, [&](const Rows &rows, std::size_t begin, std::size_t end) {
      of.key = rows;
      scoreHeads<Access::decoded>(of, begin, end, d);
    });
  // Where several passes over the heads are needed, the rows of a block still are in L1.
  for (std::size_t begin = 0; begin < a.key.count; begin += blockSize) {
    const std::size_t left = a.key.count - begin,
                      end = begin + (left < blockSize ? left : blockSize);
    if (a.key.index)
      scoreHeads<Access::gathered>(a, begin, end, d);
    else
      scoreHeads<Access::inSequence>(a, begin, end, d);
  }
}

inline void rowScores(const RowScores &a) {
  for (unsigned h = 0; h < a.groupSize; ++h)
    a.maximum[h] = -__builtin_inff();
  withDim(a.key.headDim, [&](auto d) { scoreAllRows(a, d); });
  for (unsigned h = 0; h < a.groupSize; ++h)
    for (std::size_t e = a.key.count; e % blockSize; ++e)
      a.scores[h * a.scoreStride + e] = -__builtin_inff();
}

// One block of at most 64 rows, H heads, C vectors of components from component c: partial sums
// from +0, ascending, each product rounded.
template <class V, unsigned H, unsigned C, Access how>
inline void sumBlock(const WeightedValues &a, unsigned head, unsigned c, std::size_t entry,
                     std::size_t n, float *to) {
  V sum[H][C] = {};
  for (std::size_t e = entry; e < entry + n; ++e) {
    const Row<how> row = rowOf<how>(a.value, e) + c;
    if (how == Access::inSequence && a.value.ahead && head == 0)
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

template <unsigned H, Access how>
inline void sumHeads(const WeightedValues &a, unsigned head, std::size_t entry, std::size_t n,
                     float *to) {
  // H * C sums and C values live in registers: 32 of them with AVX-512, else 16.
  constexpr unsigned most = H == 1 ? 8 : width == 16 ? 16 / H : 8 / H;
  const unsigned d = a.value.headDim;
  unsigned c = 0;
  for (; c + most * width <= d; c += most * width)
    sumBlock<Vec, H, most, how>(a, head, c, entry, n, to);
  for (; c + 2 * width <= d; c += 2 * width)
    sumBlock<Vec, H, 2, how>(a, head, c, entry, n, to);
  for (; c + width <= d; c += width)
    sumBlock<Vec, H, 1, how>(a, head, c, entry, n, to);
  for (; c < d; c += 8)
    sumBlock<EightComponents, H, 1, how>(a, head, c, entry, n, to);
}

template <Access how>
inline void sumRows(const WeightedValues &a, std::size_t entry, std::size_t n) {
  float *to = a.sum + (a.fold ? 0 : entry / blockSize * a.groupSize * a.value.headDim);
  eachHeads(a.groupSize, [&](auto count, unsigned head) {
    sumHeads<unsigned(count), how>(a, head, entry, n, to);
  });
}

inline void weightedValues(const WeightedValues &a) {
  WeightedValues of = a;
  if (a.value.work)
    return withDim(a.value.headDim, [&](auto d) {
      eachDecodedBlock(a.value, d, [&](const Rows &rows, std::size_t begin, std::size_t end) {
        of.value = rows;
        sumRows<Access::decoded>(of, begin, end - begin);
      });
    });
  for (std::size_t entry = 0; entry < a.value.count; entry += blockSize) {
    const std::size_t left = a.value.count - entry, n = left < blockSize ? left : blockSize;
    if (a.value.index)
      sumRows<Access::gathered>(a, entry, n);
    else
      sumRows<Access::inSequence>(a, entry, n);
  }
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
