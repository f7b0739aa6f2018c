// SPDX-License-Identifier: Apache-2.0
//
// Approximate scores: q[i1] . K[p, i1] * inv_tau for every position (Algorithm 1, step 1; contract
// E6.2), read from columns of K, vectorised over positions.
//
// A tile of positions is finished before the next starts, so its scores stay in the cache, and so
// do its columns where several passes over the heads of a group are needed. Within a tile eight
// columns are read at a time: each is a run of up to 32 KiB. Measured on an EPYC of the Zen 4
// generation, time against a plain sum over as much memory: 1.2; runs of 4 KiB 1.75, four columns
// at a time 1.6, fetching 1 KiB ahead 1.6.

// Positions of a tile.
constexpr std::size_t scoreTile = 16384;
// Bytes that a column is fetched ahead of its use.
constexpr std::size_t columnAhead = 320;

// Adds C columns to the scores of H heads. `first`: from +0; `last`: apply inv_tau, and take the
// maximum.
template <unsigned H, unsigned C, bool first, bool last>
inline void sweepColumns(const ApproxScores &a, const float *query, const std::uint32_t *components,
                         const float *invTau, std::size_t begin, std::size_t end, float *scores,
                         Vec *largest) {
  const Half *column[C];
  Vec q[H][C], factor[H], peak[H];
  for (unsigned j = 0; j < C; ++j)
    column[j] = a.columns + components[j] * a.columnStride;
  for (unsigned h = 0; h < H; ++h) {
    for (unsigned j = 0; j < C; ++j)
      q[h][j] = broadcast(query[h * a.rank + j]);
    factor[h] = broadcast(last ? invTau[h] : 0.0f);
    peak[h] = largest[h];
  }
  constexpr std::size_t line = 32; // positions of a cache line
  for (std::size_t at = begin; at < end; at += line) {
    for (unsigned j = 0; j < C; ++j)
      __builtin_prefetch(reinterpret_cast<const char *>(column[j] + at) + columnAhead);
#pragma GCC unroll 8
    for (std::size_t p = at; p < at + line; p += width) {
      Vec k[C];
      for (unsigned j = 0; j < C; ++j)
        k[j] = loadHalf(column[j] + p);
      for (unsigned h = 0; h < H; ++h) {
        float *score = scores + h * a.scoreStride + p;
        Vec sum = first ? Vec{} : load(score);
        for (unsigned j = 0; j < C; ++j)
          sum = addExactProduct(q[h][j], k[j], sum);
        if (last) {
          sum = sum * factor[h];
          peak[h] = maximum(sum, peak[h]);
        }
        store(score, sum);
      }
    }
  }
  for (unsigned h = 0; h < H; ++h)
    largest[h] = peak[h];
}

template <unsigned H, unsigned C>
inline void sweepColumns(const ApproxScores &a, unsigned head, unsigned done, std::size_t begin,
                         std::size_t end, Vec *largest) {
  const float *query = a.query + head * a.rank + done;
  const std::uint32_t *components = a.components + done;
  const float *invTau = a.invTau + head;
  float *scores = a.scores + head * a.scoreStride;
  const bool first = done == 0, last = done + C == a.rank;
  if (first && last)
    sweepColumns<H, C, true, true>(a, query, components, invTau, begin, end, scores, largest);
  else if (first)
    sweepColumns<H, C, true, false>(a, query, components, invTau, begin, end, scores, largest);
  else if (last)
    sweepColumns<H, C, false, true>(a, query, components, invTau, begin, end, scores, largest);
  else
    sweepColumns<H, C, false, false>(a, query, components, invTau, begin, end, scores, largest);
}

// All columns, a few at a time and ascending, for H heads.
template <unsigned H>
inline void scoreTileOf(const ApproxScores &a, unsigned head, std::size_t begin, std::size_t end,
                        Vec *largest) {
  // Registers: H * C query numbers, C columns, H sums.
  constexpr unsigned most = H == 1 ? 8 : 4;
  unsigned done = 0;
  for (; done + most <= a.rank; done += most)
    sweepColumns<H, most>(a, head, done, begin, end, largest);
  if (most == 8 && done + 4 <= a.rank) {
    sweepColumns<H, 4>(a, head, done, begin, end, largest);
    done += 4;
  }
  if (done + 2 <= a.rank) {
    sweepColumns<H, 2>(a, head, done, begin, end, largest);
    done += 2;
  }
  if (done + 1 <= a.rank)
    sweepColumns<H, 1>(a, head, done, begin, end, largest);
}

template <unsigned H>
inline void scoreHeads(const ApproxScores &a, unsigned head, std::size_t begin, std::size_t end) {
  Vec largest[H];
  for (unsigned h = 0; h < H; ++h)
    largest[h] = broadcast(a.maximum[head + h]);
  // Whole blocks; then the block that the length cuts, whose maximum is taken without what lies
  // beyond.
  const std::size_t cut = a.length & ~std::size_t(63);
  const std::size_t whole = end < cut ? end : cut > begin ? cut : begin;
  if (whole > begin)
    scoreTileOf<H>(a, head, begin, whole, largest);
  for (unsigned h = 0; h < H; ++h) {
    float most = largest[h][0];
    for (unsigned j = 1; j < width; ++j)
      most = largest[h][j] > most ? largest[h][j] : most;
    a.maximum[head + h] = most;
  }
  if (whole == end)
    return;
  Vec unused[H] = {};
  if (whole < a.length)
    scoreTileOf<H>(a, head, whole, end, unused);
  for (unsigned h = 0; h < H; ++h) {
    float *score = a.scores + (head + h) * a.scoreStride, most = a.maximum[head + h];
    for (std::size_t p = whole; p < a.length; ++p)
      most = score[p] > most ? score[p] : most;
    for (std::size_t p = whole < a.length ? a.length : whole; p < end; ++p)
      score[p] = -__builtin_inff();
    a.maximum[head + h] = most;
  }
}

inline void approxScores(const ApproxScores &a) {
  for (unsigned h = 0; h < a.groupSize; ++h)
    a.maximum[h] = -__builtin_inff();
  for (std::size_t begin = a.begin; begin < a.end; begin += scoreTile) {
    const std::size_t end = a.end - begin < scoreTile ? a.end : begin + scoreTile;
    unsigned head = 0;
    for (; head + 4 <= a.groupSize; head += 4)
      scoreHeads<4>(a, head, begin, end);
    if (head + 2 <= a.groupSize) {
      scoreHeads<2>(a, head, begin, end);
      head += 2;
    }
    if (head < a.groupSize)
      scoreHeads<1>(a, head, begin, end);
  }
}
