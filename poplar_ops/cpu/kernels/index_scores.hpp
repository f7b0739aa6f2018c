// SPDX-License-Identifier: Apache-2.0
//
// Approximate scores from a quantised key index (contract E9): cell by cell, the coefficients of
// its sixteen blocks as vectors over blocks, then the integer dot products (dot_codes_*.hpp).
#pragma once

#include "coded_cells.hpp"
#include "softmax_weights.hpp"
#if defined(SPARQ_AVX512) || defined(SPARQ_AVX2)
#include "dot_codes_x86.hpp"
#else
#include "dot_codes_portable.hpp"
#endif

// Coefficients, units and offsets of a cell's blocks for H heads, which share what is read.
template <unsigned bits, unsigned H>
inline void prepareCell(const IndexScores &a, const float *query, const CodedCells &cells,
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
      const Half *const steps = reinterpret_cast<const Half *>(cells.scales(j)) + v * width;
      const Vec step = loadHalf(steps), low = loadHalf(steps + cellBlocks);
      for (unsigned h = 0; h < H; ++h) {
        const Vec q = broadcast(query[h * rank + j]), product = q * step;
        store(products + (j * H + h) * cellBlocks + v * width, product);
        most[h] = maximum(magnitude(product), most[h]);
        offset[h] = addExactProduct(q, low, offset[h]);
      }
    }
    for (unsigned h = 0; h < H; ++h)
      inverse[h] = broadcast(limit) / (most[h] > 0.0f ? most[h] : broadcast(1.0f));
    for (unsigned j = 0; j < rank; j += each)
      for (unsigned h = 0; h < H; ++h) {
        BitsVec word{};
        for (unsigned i = 0; i < each; ++i) { // the low bits of the sum are the rounded number
          const Vec x = load(products + ((j + i) * H + h) * cellBlocks + v * width) * inverse[h];
          const BitsVec rounded = bitcast<BitsVec>(x + integerShift);
          word |= (rounded & (each == 4 ? 0xFFu : 0xFFFFu)) << (32 / each * i);
        }
        __builtin_memcpy(a.words + (j / each * H + h) * cellBlocks + v * width, &word,
                         sizeof(word));
      }
    for (unsigned h = 0; h < H; ++h) {
      store(heads[h].unit + v * width, most[h] * (1.0f / limit));
      store(heads[h].offset + v * width, offset[h]);
    }
  }
}

// Blocks [begin, end) of a cell, H heads from `head`. Of several passes over the heads, each asks
// for its part of the next cell.
template <unsigned bits, unsigned H>
inline void scoreCell(const IndexScores &a, unsigned head, const CodedCells &cells,
                      std::size_t cell, unsigned begin, unsigned end, BesideCells &beside) {
  constexpr unsigned each = componentsOfWord(bits), step = stepBlocks(bits);
  const unsigned rank = a.range.rank;
  CellOfHead heads[H];
  for (unsigned h = 0; h < H; ++h) {
    heads[h].invTau = a.invTau[head + h];
    heads[h].scores = a.scores + (head + h) * a.scoreStride + cell * cellBlocks * blockSize;
    heads[h].peak = broadcast(a.maximum[head + h]);
  }
  CodesOfCell codes{cells.codes(), a.words, (rank + each - 1) / each, cells.ahead(true)};
  prepareCell<bits, H>(a, a.query + head * std::size_t(rank), cells, heads);
  const unsigned passes = (a.groupSize + headsTogether - 1) / headsTogether,
                 pass = head / headsTogether;
  for (unsigned block = begin; block < end; block += step) {
    const unsigned n = end - block < step ? end - block : step;
    codes.next = cells.ahead(block / step % passes == pass);
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
inline void scoreHeadsOfCell(const IndexScores &a, unsigned head, const CodedCells &cells,
                             std::size_t cell, unsigned begin, unsigned end, BesideCells &beside) {
  for (; head + H <= a.groupSize; head += H)
    scoreCell<bits, H>(a, head, cells, cell, begin, end, beside);
  if constexpr (H > 1)
    scoreHeadsOfCell<bits, H - 1>(a, head, cells, cell, begin, end, beside);
}

template <unsigned bits> inline void indexScoresOf(const IndexScores &a) {
  const std::size_t begin = a.range.begin, end = a.range.end;
  const std::size_t passes = (a.groupSize + headsTogether - 1) / headsTogether;
  BesideCells beside(a.softmax, (end - begin) * passes);
  const std::size_t firstCell = begin / cellBlocks, lastCell = (end - 1) / cellBlocks;
  CodedCells cells(a, firstCell);
  for (std::size_t cell = firstCell; cell <= lastCell; ++cell) {
    const std::size_t from = cell * cellBlocks;
    const auto first = static_cast<unsigned>(from < begin ? begin - from : 0);
    const auto last = static_cast<unsigned>(end - from < cellBlocks ? end - from : cellBlocks);
    if (cell < lastCell)
      cells.turn(true, &a.range, cell + 1);
    else
      cells.turn(a.next, a.next, a.next ? a.next->begin / cellBlocks : 0);
    scoreHeadsOfCell<bits>(a, 0, cells, cell, first, last, beside);
    cells.fetchRest(first, last);
  }
}

inline void indexScores(const IndexScores &a) {
  if (a.range.cells.bits == 8)
    indexScoresOf<8>(a);
  else if (a.range.cells.bits == 2)
    indexScoresOf<2>(a);
  else
    indexScoresOf<4>(a);
}
