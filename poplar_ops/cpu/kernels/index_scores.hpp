// SPDX-License-Identifier: Apache-2.0
//
// Approximate scores from a quantised key index (contract E9): cell by cell, the coefficients of
// its sixteen blocks as vectors over blocks, then the integer dot products (dot_codes_*.hpp).
#pragma once

#include "cells.hpp"
#if defined(SPARQ_AVX512) || defined(SPARQ_AVX2)
#include "dot_codes_x86.hpp"
#else
#include "dot_codes_portable.hpp"
#endif

inline Vec magnitude(Vec x) { return bitcast<Vec>(bitcast<BitsVec>(x) & 0x7FFFFFFFu); }

// Coefficients, units and offsets of a cell's blocks.
template <unsigned bits>
inline void prepareCell(const IndexScores &a, const float *query, std::size_t stepsAt, float limit,
                        CellOfHead &head) {
  constexpr unsigned each = componentsOfWord(bits);
  Vec most[cellVectors] = {}, offset[cellVectors] = {}, inverse[cellVectors];
  for (unsigned j = 0; j < a.range.rank; ++j) {
    const Half *const steps = reinterpret_cast<const Half *>(a.rows[j] + stepsAt);
    const Vec q = broadcast(query[j]);
    for (unsigned v = 0; v < cellVectors; ++v) {
      const Vec product = q * loadHalf(steps + v * width);
      store(a.products + j * cellBlocks + v * width, product);
      most[v] = maximum(magnitude(product), most[v]);
      offset[v] = addExactProduct(q, loadHalf(steps + cellBlocks + v * width), offset[v]);
    }
  }
  for (unsigned v = 0; v < cellVectors; ++v) {
    inverse[v] = broadcast(limit) / (most[v] > 0.0f ? most[v] : broadcast(1.0f));
    store(head.unit + v * width, most[v] * (1.0f / limit));
    store(head.offset + v * width, offset[v]);
  }
  for (unsigned j = 0; j < a.range.rank; j += each)
    for (unsigned v = 0; v < cellVectors; ++v) {
      BitsVec word{};
      for (unsigned i = 0; i < each; ++i) { // the low bits of the sum are the rounded number
        const Vec x = load(a.products + (j + i) * cellBlocks + v * width) * inverse[v];
        const BitsVec rounded = bitcast<BitsVec>(x + integerShift);
        word |= (rounded & (bits == 4 ? 0xFFu : 0xFFFFu)) << (32 / each * i);
      }
      __builtin_memcpy(head.words + j / each * cellBlocks + v * width, &word, sizeof(word));
    }
}

// H heads, blocks [begin, end) of a cell.
template <unsigned bits, unsigned H>
inline void scoreCell(const IndexScores &a, unsigned head, std::size_t stepsAt, float limit,
                      std::size_t cell, unsigned begin, unsigned end, BesideCells &beside) {
  constexpr unsigned each = componentsOfWord(bits), step = stepBlocks(bits);
  const unsigned rank = a.range.rank, nWords = (rank + each - 1) / each;
  CellOfHead heads[H];
  for (unsigned h = 0; h < H; ++h) {
    heads[h].words = a.words + h * std::size_t(nWords) * cellBlocks;
    heads[h].invTau = a.invTau[head + h];
    heads[h].scores = a.scores + (head + h) * a.scoreStride + cell * cellBlocks * blockSize;
    heads[h].peak = broadcast(a.maximum[head + h]);
    prepareCell<bits>(a, a.query + (head + h) * std::size_t(rank), stepsAt, limit, heads[h]);
  }
  for (unsigned block = begin; block < end; block += step) {
    const unsigned n = end - block < step ? end - block : step;
    scoreBlocks<bits, H>(a.rows, nWords, heads, block, n, beside);
    beside.blocks(n);
  }
  for (unsigned h = 0; h < H; ++h) {
    float peak = a.maximum[head + h];
    for (unsigned j = 0; j < width; ++j)
      peak = heads[h].peak[j] > peak ? heads[h].peak[j] : peak;
    a.maximum[head + h] = peak;
  }
}

template <unsigned bits> inline void indexScoresOf(const IndexScores &a) {
  constexpr unsigned two = headsTogether < 2 ? headsTogether : 2;
  const unsigned rank = a.range.rank;
  const unsigned nWords = (rank + componentsOfWord(bits) - 1) / componentsOfWord(bits);
  const float limit = static_cast<float>(coefficientLimit(bits, rank));
  // Words are made of whole groups of components: those beyond the rank count 0 times anything.
  const unsigned padded = (rank + 3) / 4 * 4;
  for (unsigned i = rank * cellBlocks; i < padded * cellBlocks; ++i)
    a.products[i] = 0.0f;

  const std::size_t begin = a.range.begin, end = a.range.end;
  const unsigned passes =
      a.groupSize / headsTogether + (a.groupSize % headsTogether + two - 1) / two;
  BesideCells beside(a.softmax, (end - begin) * passes);
  const std::size_t lastCell = (end - 1) / cellBlocks;
  for (std::size_t cell = begin / cellBlocks; cell <= lastCell; ++cell) {
    const Cell now(a.range, cell);
    for (unsigned j = 0; j < padded; ++j)
      a.rows[j] = now.row(j < rank ? j : 0);
    if (cell == begin / cellBlocks && !a.fetched) {
      beside.ahead.start(now);
      beside.ahead.rest();
    }
    const std::size_t from = cell * cellBlocks;
    const auto first = static_cast<unsigned>(from < begin ? begin - from : 0);
    const auto last = static_cast<unsigned>(end - from < cellBlocks ? end - from : cellBlocks);
    if (cell < lastCell || a.next)
      beside.ahead.start(cell < lastCell ? Cell(a.range, cell + 1)
                                         : Cell(*a.next, a.next->begin / cellBlocks));
    const std::size_t words = (last - first) * wordsOfBlock<bits>(nWords) * passes;
    beside.linesEach = static_cast<unsigned>((rank * now.rowBytes() / 64 + words - 1) / words);
    unsigned head = 0;
    for (; head + headsTogether <= a.groupSize; head += headsTogether)
      scoreCell<bits, headsTogether>(a, head, now.stepsAt(), limit, cell, first, last, beside);
    for (; head + two <= a.groupSize; head += two)
      scoreCell<bits, two>(a, head, now.stepsAt(), limit, cell, first, last, beside);
    for (; head < a.groupSize; ++head)
      scoreCell<bits, 1>(a, head, now.stepsAt(), limit, cell, first, last, beside);
    beside.ahead.rest();
  }
}

inline void indexScores(const IndexScores &a) {
  if (a.range.cells.bits == 8)
    indexScoresOf<8>(a);
  else
    indexScoresOf<4>(a);
}
