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

// Coefficients, units and offsets of a cell's blocks for H heads, which share what is read.
template <unsigned bits, unsigned H>
inline void prepareCell(const IndexScores &a, const float *query, const CellRows &cell,
                        CellOfHead *heads) {
  constexpr unsigned each = componentsOfWord(bits);
  const unsigned rank = a.range.rank;
  const float limit = static_cast<float>(coefficientLimit(bits, rank));
  float *const products = a.products; // (rank rounded up to whole words, H, 16)
  // Components beyond the rank count 0 times anything.
  for (unsigned i = rank * H * cellBlocks; i < (rank + each - 1) / each * each * H * cellBlocks;
       ++i)
    products[i] = 0.0f;
  for (unsigned v = 0; v < cellVectors; ++v) {
    Vec most[H] = {}, offset[H] = {}, inverse[H];
    for (unsigned j = 0; j < rank; ++j) {
      const Half *const steps =
          reinterpret_cast<const Half *>(cell.rows[j] + cell.stepsAt) + v * width;
      const Vec step = loadHalf(steps), low = loadHalf(steps + cellBlocks);
      for (unsigned h = 0; h < H; ++h) {
        const Vec q = broadcast(query[h * rank + j]), product = q * step;
        store(products + (j * H + h) * cellBlocks + v * width, product);
        most[h] = maximum(magnitude(product), most[h]);
        offset[h] = addExactProduct(q, low, offset[h]);
      }
    }
    for (unsigned h = 0; h < H; ++h) {
      inverse[h] = broadcast(limit) / (most[h] > 0.0f ? most[h] : broadcast(1.0f));
      store(heads[h].unit + v * width, most[h] * (1.0f / limit));
      store(heads[h].offset + v * width, offset[h]);
    }
    for (unsigned j = 0; j < rank; j += each)
      for (unsigned h = 0; h < H; ++h) {
        BitsVec word{};
        for (unsigned i = 0; i < each; ++i) { // the low bits of the sum are the rounded number
          const Vec x = load(products + ((j + i) * H + h) * cellBlocks + v * width) * inverse[h];
          const BitsVec rounded = bitcast<BitsVec>(x + integerShift);
          word |= (rounded & (bits == 4 ? 0xFFu : 0xFFFFu)) << (32 / each * i);
        }
        __builtin_memcpy(a.words + (j / each * H + h) * cellBlocks + v * width, &word,
                         sizeof(word));
      }
  }
}

// Blocks [begin, end) of a cell, H heads from `head`; `nextSteps`: where the next cell has its
// steps. Of several passes over the heads, each asks for its part of the next cell.
template <unsigned bits, unsigned H>
inline void scoreCell(const IndexScores &a, unsigned head, const CellRows &now,
                      const CellRows &next, std::size_t cell, unsigned begin, unsigned end,
                      BesideCells &beside) {
  constexpr unsigned each = componentsOfWord(bits), step = stepBlocks(bits);
  const unsigned rank = a.range.rank;
  CellOfHead heads[H];
  for (unsigned h = 0; h < H; ++h) {
    heads[h].invTau = a.invTau[head + h];
    heads[h].scores = a.scores + (head + h) * a.scoreStride + cell * cellBlocks * blockSize;
    heads[h].peak = broadcast(a.maximum[head + h]);
  }
  CodesOfCell codes{now.rows, next.rows, a.words, rank, (rank + each - 1) / each};
  prepareCell<bits, H>(a, a.query + head * std::size_t(rank), now, heads);
  const unsigned passes = (a.groupSize + headsTogether - 1) / headsTogether,
                 pass = head / headsTogether;
  for (unsigned block = begin; block < end; block += step) {
    const unsigned n = end - block < step ? end - block : step;
    codes.next = block / step % passes == pass ? next.rows : now.rows;
    scoreBlocks<bits, H>(codes, heads, block, n);
    beside.blocks(n);
  }
  for (unsigned h = 0; h < H; ++h) {
    float peak = a.maximum[head + h];
    for (unsigned j = 0; j < width; ++j)
      peak = heads[h].peak[j] > peak ? heads[h].peak[j] : peak;
    a.maximum[head + h] = peak;
  }
}

// The heads of a cell in passes of at most headsTogether.
template <unsigned bits, unsigned H = headsTogether>
inline void scoreHeadsOfCell(const IndexScores &a, unsigned head, const CellRows &now,
                             const CellRows &next, std::size_t cell, unsigned begin, unsigned end,
                             BesideCells &beside) {
  for (; head + H <= a.groupSize; head += H)
    scoreCell<bits, H>(a, head, now, next, cell, begin, end, beside);
  if constexpr (H > 1)
    scoreHeadsOfCell<bits, H - 1>(a, head, now, next, cell, begin, end, beside);
}

template <unsigned bits> inline void indexScoresOf(const IndexScores &a) {
  const unsigned rank = a.range.rank;
  const std::size_t begin = a.range.begin, end = a.range.end;
  const std::size_t passes = (a.groupSize + headsTogether - 1) / headsTogether;
  BesideCells beside(a.softmax, (end - begin) * passes);
  CellRows now{a.rows, 0, 0}, next{a.nextRows, 0, 0};
  const std::size_t firstCell = begin / cellBlocks, lastCell = (end - 1) / cellBlocks;
  next.set(Cell(a.range, firstCell));
  if (!a.fetched)
    next.fetch(0, rank);
  for (std::size_t cell = firstCell; cell <= lastCell; ++cell) {
    const CellRows read = next;
    next = now;
    now = read;
    const bool more = cell < lastCell || a.next;
    if (more)
      next.set(cell < lastCell ? Cell(a.range, cell + 1)
                               : Cell(*a.next, a.next->begin / cellBlocks));
    else
      next = now; // asked for once more, for nothing
    const std::size_t from = cell * cellBlocks;
    const auto first = static_cast<unsigned>(from < begin ? begin - from : 0);
    const auto last = static_cast<unsigned>(end - from < cellBlocks ? end - from : cellBlocks);
    scoreHeadsOfCell<bits>(a, 0, now, next, cell, first, last, beside);
    if (more) { // where there were fewer blocks than a cell has, these rows are left
      const auto asked = [&](unsigned block) { return rank * block * 4 / (3 * cellBlocks); };
      next.fetch(0, asked(first) < rank ? asked(first) : rank);
      next.fetch(asked(last), rank);
    }
  }
}

inline void indexScores(const IndexScores &a) {
  if (a.range.cells.bits == 8)
    indexScoresOf<8>(a);
  else
    indexScoresOf<4>(a);
}
