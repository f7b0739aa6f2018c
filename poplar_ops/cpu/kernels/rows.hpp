// SPDX-License-Identifier: Apache-2.0
//
// Work on rows of K and V, in sequence (dense attention) or gathered (the selected positions):
// scores and weighted sums (Algorithm 1, step 2; contract E6.4), and the running sum of values.

// Gathered rows are fetched this many ahead of their use.
constexpr std::size_t rowsAhead = 16;

template <bool gathered> inline const Half *rowOf(const Rows &r, std::size_t entry) {
  return r.rows + (gathered ? r.index[entry] : r.first + entry) * std::size_t(r.headDim);
}

template <bool gathered> inline void fetchRow(const Rows &r, std::size_t entry) {
  if (gathered && entry < r.count) {
    const char *at = reinterpret_cast<const char *>(rowOf<true>(r, entry));
    for (std::size_t byte = 0; byte < r.headDim * sizeof(Half); byte += 64)
      __builtin_prefetch(at + byte);
  }
}

// Scores of N rows (a multiple of 4) from `entry` for H heads.
template <unsigned H, unsigned N, bool gathered>
inline void scoreRows(const RowScores &a, unsigned head, std::size_t entry) {
  const unsigned d = a.key.headDim;
  const Half *row[N];
  Lanes sum[H][N] = {};
  for (unsigned i = 0; i < N; ++i) {
    row[i] = rowOf<gathered>(a.key, entry + i);
    fetchRow<gathered>(a.key, entry + rowsAhead + i);
  }
  for (unsigned c = 0; c < d; c += nLanes) {
    Lanes k[N];
    for (unsigned i = 0; i < N; ++i)
      k[i] = loadHalfLanes(row[i] + c);
    for (unsigned h = 0; h < H; ++h) {
      const Lanes q = loadLanes(a.query + (head + h) * d + c);
      for (unsigned i = 0; i < N; ++i)
        sum[h][i] = addExactProduct(q, k[i], sum[h][i]);
    }
  }
  for (unsigned h = 0; h < H; ++h) {
    float *score = a.scores + (head + h) * a.scoreStride + entry;
    for (unsigned i = 0; i < N; i += 4)
      treeSums(sum[h] + i, score + i);
    float most = a.maximum[head + h];
    for (unsigned i = 0; i < N; ++i) {
      score[i] = score[i] * a.scale;
      most = score[i] > most ? score[i] : most;
    }
    a.maximum[head + h] = most;
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

template <bool gathered> inline void scoreAllRows(const RowScores &a) {
  // Where several passes over the heads are needed, the rows of a block still are in L1.
  for (std::size_t block = 0; block < a.key.count; block += blockSize) {
    const std::size_t left = a.key.count - block, n = left < blockSize ? left : blockSize;
    unsigned head = 0;
    for (; head + 2 <= a.groupSize; head += 2) {
      std::size_t e = 0;
      for (; e + 4 <= n; e += 4)
        scoreRows<2, 4, gathered>(a, head, block + e);
      for (; e < n; ++e)
        for (unsigned h = head; h < head + 2; ++h)
          scoreRow<gathered>(a, h, block + e);
    }
    if (head < a.groupSize) {
      std::size_t e = 0;
      for (; e + 8 <= n; e += 8)
        scoreRows<1, 8, gathered>(a, head, block + e);
      for (; e < n; ++e)
        scoreRow<gathered>(a, head, block + e);
    }
  }
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

// A vector of components: of Vec's width, or of eight lanes.
template <class V> struct Components;
template <> struct Components<Vec> {
  static constexpr unsigned n = width;
  static Vec get(const Half *from) { return loadHalf(from); }
  static Vec get(const float *from) { return load(from); }
  static void put(float *to, Vec x) { store(to, x); }
};
#ifdef SPARQ_WIDE_VECTORS // the last eight of head_dim may be half a vector
template <> struct Components<Lanes> {
  static constexpr unsigned n = nLanes;
  static Lanes get(const Half *from) { return loadHalfLanes(from); }
  static Lanes get(const float *from) { return loadLanes(from); }
  static void put(float *to, Lanes x) { storeLanes(to, x); }
};
using EightComponents = Lanes;
#else
using EightComponents = Vec; // head_dim is a multiple of eight, so nothing is left
#endif

// One block of at most 64 rows, H heads, C vectors of components from component c: partial sums
// from +0, ascending, each product rounded.
template <class V, unsigned H, unsigned C, bool gathered>
inline void sumBlock(const WeightedValues &a, unsigned head, unsigned c, std::size_t entry,
                     std::size_t n, float *to) {
  V sum[H][C] = {};
  for (std::size_t e = entry; e < entry + n; ++e) {
    const Half *row = rowOf<gathered>(a.value, e) + c;
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
