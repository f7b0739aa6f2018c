// SPDX-License-Identifier: Apache-2.0
//
// Approximate scores: q[i1] . K[p, i1] * inv_tau for every position (Algorithm 1, step 1; contract
// E6.2), read from columns of K, vectorised over positions.
//
// One head: the memory decides. Eight columns are read at a time, each a run of up to 32 KiB, which
// the hardware's prefetchers follow; the sums between them stay in the caches. Measured on a Zen 4
// core, time against a plain sum over as much memory: 1.15; four columns at a time 1.3,
// sixteen 1.2, fetching 512 bytes ahead 1.25, none 1.2; runs of 2 KiB of all columns, fetched into
// L2 by the program, 1.4.
//
// More heads: arithmetic decides. The sums of some positions stay in registers while all columns
// are added; their columns are in L2 by then, fetched a run of positions ahead.

// Positions of a piece of columns.
constexpr std::size_t sweepPiece = 512;
// Bytes that a column is fetched ahead of its use.
constexpr std::size_t columnAhead = 320;

// Adds C columns to the scores of one head. `first`: from +0; `last`: apply inv_tau, and take the
// maximum.
template <unsigned C, bool first, bool last>
inline void sweepColumns(const ApproxScores &a, unsigned done, std::size_t begin, std::size_t end,
                         ScoreVec &largest) {
  constexpr unsigned line = 32, n = line / scoreWidth; // positions of a cache line
  const Half *column[C];
  ScoreVec q[C], peak = largest;
  for (unsigned j = 0; j < C; ++j) {
    column[j] = a.columns[done + j];
    q[j] = broadcastScore(a.query[done + j]);
  }
  const ScoreVec factor = broadcastScore(*a.invTau);
  for (std::size_t at = begin; at < end; at += line) {
    for (unsigned j = 0; j < C; ++j)
      __builtin_prefetch(reinterpret_cast<const char *>(column[j] + at) + columnAhead);
#pragma GCC unroll 8
    for (unsigned i = 0; i < n; ++i) {
      const std::size_t p = at + i * scoreWidth;
      ScoreVec sum = first ? ScoreVec{} : loadScore(a.scores + p);
      for (unsigned j = 0; j < C; ++j)
        sum = addExactProduct(q[j], loadHalfScore(column[j] + p), sum);
      if (last) {
        sum = sum * factor;
        peak = maximum(sum, peak);
      }
      storeScore(a.scores + p, sum);
    }
  }
  largest = peak;
}

template <unsigned C>
inline void sweepColumns(const ApproxScores &a, unsigned done, std::size_t begin, std::size_t end,
                         ScoreVec &largest) {
  const bool first = done == 0, last = done + C == a.rank;
  if (first && last)
    sweepColumns<C, true, true>(a, done, begin, end, largest);
  else if (first)
    sweepColumns<C, true, false>(a, done, begin, end, largest);
  else if (last)
    sweepColumns<C, false, true>(a, done, begin, end, largest);
  else
    sweepColumns<C, false, false>(a, done, begin, end, largest);
}

// C columns, a piece at a time, with a few rows of the list asked for at each.
template <unsigned C>
inline void sweepPieces(const ApproxScores &a, unsigned &done, std::size_t begin, std::size_t end,
                        std::size_t rowsEach, ScoreVec &largest) {
  for (std::size_t at = begin; at < end; at += sweepPiece) {
    if (done + C == a.rank)
      fetchRows(a.rows, rowsEach);
    sweepColumns<C>(a, done, at, end - at < sweepPiece ? end : at + sweepPiece, largest);
  }
  done += C;
}

inline void sweepAllColumns(const ApproxScores &a, std::size_t begin, std::size_t end,
                            std::size_t rowsEach, ScoreVec &largest) {
  unsigned done = 0;
  while (done + columnsTogether <= a.rank)
    sweepPieces<columnsTogether>(a, done, begin, end, rowsEach, largest);
  if (done + 4 <= a.rank)
    sweepPieces<4>(a, done, begin, end, rowsEach, largest);
  if (done + 2 <= a.rank)
    sweepPieces<2>(a, done, begin, end, rowsEach, largest);
  if (done + 1 <= a.rank)
    sweepPieces<1>(a, done, begin, end, rowsEach, largest);
}

// Sums of H heads for N vectors of positions.
template <unsigned H, unsigned N>
__attribute__((noinline)) void scorePositions(const ApproxScores &a, unsigned head, std::size_t p,
                                              ScoreVec *largest) {
  const float *query = a.query + head * a.rank;
  ScoreVec sum[H][N];
  for (unsigned h = 0; h < H; ++h)
    for (unsigned i = 0; i < N; ++i)
      sum[h][i] = ScoreVec{};
  for (unsigned j = 0; j < a.rank; ++j, ++query) {
    const Half *column = a.columns[j] + p;
    // Opaque: or the compiler keeps p + i * scoreWidth for every i, and runs out of registers.
    __asm__("" : "+r"(column));
    ScoreVec k[N];
    for (unsigned i = 0; i < N; ++i)
      k[i] = loadHalfScore(column + i * scoreWidth);
    for (unsigned h = 0; h < H; ++h) {
      const ScoreVec q = broadcastScore(query[h * std::size_t(a.rank)]);
      for (unsigned i = 0; i < N; ++i)
        sum[h][i] = addExactProduct(q, k[i], sum[h][i]);
    }
  }
  for (unsigned h = 0; h < H; ++h) {
    const ScoreVec factor = broadcastScore(a.invTau[head + h]);
    float *const score = a.scores + (head + h) * a.scoreStride + p;
    for (unsigned i = 0; i < N; ++i) {
      sum[h][i] = sum[h][i] * factor;
      storeScore(score + i * scoreWidth, sum[h][i]);
      largest[h] = maximum(sum[h][i], largest[h]);
    }
  }
}

// What is asked for while a block of positions, or a piece of some columns, is computed.
struct Pace {
  std::size_t lines, rows;
  std::size_t rowsFrom; // late, or the columns drive the rows out of L2
};

// Positions [begin, end) of a run, for H heads.
template <unsigned H>
inline void scoreBlocks(const ApproxScores &a, unsigned head, std::size_t begin, std::size_t end,
                        const Pace &pace, ScoreVec *largest) {
  constexpr unsigned most = blockSize / scoreWidth, fit = scoreSums / H,
                     n = fit < most ? fit : most;
  for (std::size_t block = begin; block < end; block += blockSize) {
    if (a.now->runBegin < a.now->end)
      fetch(*a.now, pace.lines);
    else
      fetchEarly(a.next, pace.lines);
    if (block >= pace.rowsFrom)
      fetchRows(a.rows, pace.rows);
    for (unsigned j = 0; j < blockSize; j += n * scoreWidth)
      scorePositions<H, n>(a, head, block + j, largest);
  }
}

// Positions [begin, end) of a run, whole blocks or one that the length cuts, for H heads.
template <unsigned H>
inline void scoreRun(const ApproxScores &a, unsigned head, std::size_t begin, std::size_t end,
                     const Pace &pace) {
  ScoreVec largest[H];
  for (unsigned h = 0; h < H; ++h)
    largest[h] = broadcastScore(a.maximum[head + h]);
  if (a.groupSize == 1)
    sweepAllColumns(a, begin, end, pace.rows, *largest);
  else
    scoreBlocks<H>(a, head, begin, end, pace, largest);
  for (unsigned h = 0; h < H; ++h) {
    float *const score = a.scores + (head + h) * a.scoreStride, peak = a.maximum[head + h];
    if (end <= a.length) {
      for (unsigned j = 0; j < scoreWidth; ++j)
        peak = largest[h][j] > peak ? largest[h][j] : peak;
    } else { // one block, whose maximum is taken without what lies beyond the length
      for (std::size_t p = begin; p < a.length; ++p)
        peak = score[p] > peak ? score[p] : peak;
      for (std::size_t p = a.length; p < end; ++p)
        score[p] = -__builtin_inff();
    }
    a.maximum[head + h] = peak;
  }
}

inline void approxScores(const ApproxScores &a) {
  for (unsigned h = 0; h < a.groupSize; ++h)
    a.maximum[h] = -__builtin_inff();
  // Runs of whole blocks, then the block that the length cuts.
  const std::size_t whole = a.length & ~std::size_t(blockSize - 1);
  const std::size_t cut = a.end < whole ? a.end : whole;
  const bool sweep = a.groupSize == 1;
  const std::size_t reserve = a.now->run / 32 * a.rank; // lines of a run
  if (!sweep && a.now->lines < reserve)
    fetch(*a.now, reserve - a.now->lines);
  // As many lines are asked for as are used, by each pass over four heads its part; and all rows
  // in the last quarter of the blocks, or in the last pass over columns.
  const std::size_t passes = sweep ? 1 : (a.groupSize + 3) / 4;
  const std::size_t late = sweep ? a.end - a.begin : (a.end - a.begin + 3) / 4;
  const std::size_t parts = (late / (sweep ? sweepPiece : blockSize) + 1) * passes;
  const Pace pace{(2 * a.rank + passes - 1) / passes,
                  a.rows ? (a.rows->count + parts - 1) / parts : 0, a.end - late};
  for (std::size_t begin = a.begin; begin < a.end;) {
    const std::size_t stop = begin < cut ? cut : a.end;
    const std::size_t end = stop - begin < a.now->run ? stop : begin + a.now->run;
    unsigned head = 0;
    for (; head + 4 <= a.groupSize; head += 4)
      scoreRun<4>(a, head, begin, end, pace);
    if (head + 2 <= a.groupSize) {
      scoreRun<2>(a, head, begin, end, pace);
      head += 2;
    }
    if (head < a.groupSize)
      scoreRun<1>(a, head, begin, end, pace);
    begin = end;
  }
}
