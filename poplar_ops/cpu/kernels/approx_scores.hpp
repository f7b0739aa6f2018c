// SPDX-License-Identifier: Apache-2.0
//
// Approximate scores: q[i1] . K[p, i1] * inv_tau for every position (contract
// E6.2), read from columns of K, vectorised over positions.
//
// Eight columns are read at a time, each a run of up to 32 KiB, which the hardware's prefetchers
// follow; the sums between them stay in the caches. Measured on a Zen 4 core, time against a plain
// sum over as much memory: 1.2; four columns at a time 1.35, sixteen 1.2, fetching 512 bytes ahead
// 1.25; all columns at once, fetched into L2 by the program some KiB ahead, 1.4.
#pragma once

#include "components.hpp"
#include "softmax_weights.hpp"

// Eight lanes where there may be sixteen: a Zen 4 core widens fp16 to 256 bits at almost twice the
// rate of 512 bits.
using ScoreVec = EightComponents;
using Scores = Components<ScoreVec>;

// Columns that are read side by side.
constexpr unsigned columnsTogether = 8;
// Positions of a run, and of a piece of it.
constexpr std::size_t sweepRun = 16384;
constexpr std::size_t sweepPiece = 256;
// Bytes that a column is fetched ahead of its use.
constexpr std::size_t columnAhead = 320;

// Adds C columns to the scores of H heads. `first`: from +0; `last`: apply inv_tau, and take the
// maximum.
template <unsigned H, unsigned C, bool first, bool last>
inline void sweepColumns(const ApproxScores &a, unsigned head, unsigned done, std::size_t begin,
                         std::size_t end, ScoreVec *largest) {
  constexpr unsigned line = 32; // positions of a cache line
  // Vectors of positions that a query number is loaded for.
  constexpr unsigned N = H == 4 ? 2 : 1;
  const Half *column[C];
  ScoreVec q[H][C], factor[H], peak[H];
  for (unsigned j = 0; j < C; ++j)
    column[j] = a.columns[done + j];
  for (unsigned h = 0; h < H; ++h) {
    for (unsigned j = 0; j < C; ++j)
      q[h][j] = Scores::all(a.query[(head + h) * std::size_t(a.rank) + done + j]);
    factor[h] = Scores::all(a.invTau[head + h]);
    peak[h] = largest[h];
  }
  float *const scores = a.scores + head * a.scoreStride;
  for (std::size_t at = begin; at < end; at += line) {
    for (unsigned j = 0; j < C; ++j)
      fetchLine(reinterpret_cast<const char *>(column[j] + at) + columnAhead);
#pragma GCC unroll 8
    for (unsigned vector = 0; vector < line / Scores::n; vector += N) {
      const std::size_t p = at + vector * Scores::n;
      ScoreVec k[C][N];
      for (unsigned j = 0; j < C; ++j)
        for (unsigned i = 0; i < N; ++i)
          k[j][i] = Scores::get(column[j] + p + i * Scores::n);
      for (unsigned h = 0; h < H; ++h) {
        float *const score = scores + h * a.scoreStride + p;
        ScoreVec sum[N];
        for (unsigned i = 0; i < N; ++i)
          sum[i] = first ? ScoreVec{} : Scores::get(score + i * Scores::n);
        for (unsigned j = 0; j < C; ++j)
          for (unsigned i = 0; i < N; ++i)
            sum[i] = addExactProduct(q[h][j], k[j][i], sum[i]);
        for (unsigned i = 0; i < N; ++i) {
          if (last) {
            sum[i] = sum[i] * factor[h];
            peak[h] = maximum(sum[i], peak[h]);
          }
          Scores::put(score + i * Scores::n, sum[i]);
        }
      }
    }
  }
  for (unsigned h = 0; h < H; ++h)
    largest[h] = peak[h];
}

template <unsigned H, unsigned C>
inline void sweepColumns(const ApproxScores &a, unsigned head, unsigned done, std::size_t begin,
                         std::size_t end, ScoreVec *largest) {
  const bool first = done == 0, last = done + C == a.rank;
  if (first && last)
    sweepColumns<H, C, true, true>(a, head, done, begin, end, largest);
  else if (first)
    sweepColumns<H, C, true, false>(a, head, done, begin, end, largest);
  else if (last)
    sweepColumns<H, C, false, true>(a, head, done, begin, end, largest);
  else
    sweepColumns<H, C, false, false>(a, head, done, begin, end, largest);
}

// While the memory is waited for there is time to compute: after each piece of columns some of the
// softmax of another pair is done, little enough that the reading goes on meanwhile.
struct Beside {
  explicit Beside(const ApproxScores &a)
      : softmax(a.softmax),
        pieces((a.end - a.begin + sweepPiece - 1) / sweepPiece *
               ((a.rank + columnsTogether - 1) / columnsTogether) * ((a.groupSize + 3) / 4)) {}
  void piece() {
    ++done;
    if (softmax) // at equal pace
      softmaxUntil(*softmax, softmax->n / blockSize * done / pieces);
  }
  SoftmaxWeights *const softmax;
  const std::size_t pieces;
  std::size_t done = 0;
};

// C columns, a piece at a time.
template <unsigned H, unsigned C>
inline void sweepPieces(const ApproxScores &a, unsigned head, unsigned &done, std::size_t begin,
                        std::size_t end, Beside &beside, ScoreVec *largest) {
  for (std::size_t at = begin; at < end; at += sweepPiece) {
    sweepColumns<H, C>(a, head, done, at, end - at < sweepPiece ? end : at + sweepPiece, largest);
    beside.piece();
  }
  done += C;
}

// All columns at positions [begin, end), whole blocks or one that the length cuts, for H heads.
template <unsigned H>
inline void scoreHeads(const ApproxScores &a, unsigned head, std::size_t begin, std::size_t end,
                       Beside &beside) {
  ScoreVec largest[H];
  for (unsigned h = 0; h < H; ++h)
    largest[h] = Scores::all(a.maximum[head + h]);
  unsigned done = 0;
  while (done + columnsTogether <= a.rank)
    sweepPieces<H, columnsTogether>(a, head, done, begin, end, beside, largest);
  if (done + 4 <= a.rank)
    sweepPieces<H, 4>(a, head, done, begin, end, beside, largest);
  if (done + 2 <= a.rank)
    sweepPieces<H, 2>(a, head, done, begin, end, beside, largest);
  if (done + 1 <= a.rank)
    sweepPieces<H, 1>(a, head, done, begin, end, beside, largest);
  for (unsigned h = 0; h < H; ++h) {
    float *const score = a.scores + (head + h) * a.scoreStride, peak = a.maximum[head + h];
    if (end <= a.length) {
      for (unsigned j = 0; j < Scores::n; ++j)
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
  Beside beside(a);
  // Runs of whole blocks, then the block that the length cuts. Four heads at a time.
  const std::size_t whole = a.length & ~std::size_t(blockSize - 1);
  const std::size_t cut = a.end < whole ? a.end : whole;
  for (std::size_t begin = a.begin, end; begin < a.end; begin = end) {
    const std::size_t stop = begin < cut ? cut : a.end;
    end = stop - begin < sweepRun ? stop : begin + sweepRun;
    eachHeads(a.groupSize, [&](auto count, unsigned head) {
      scoreHeads<unsigned(count)>(a, head, begin, end, beside);
    });
  }
}
