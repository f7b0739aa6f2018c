// SPDX-License-Identifier: Apache-2.0
//
// Integer dot products of codes and coefficients, AVX2 and AVX-512. The bytes of several components
// are interleaved (4 bits: of four; 8 bits: of two, widened to 16 bits), so that each lane of 32
// bits has the codes of one position, and is multiplied with the coefficients of a word.
#pragma once

#include "cells.hpp"
#ifdef SPARQ_AVX512
#include "codes_avx512.hpp"
#else
#include "codes_avx2.hpp"
#endif

constexpr unsigned codeBytes = sizeof(Codes);

// Blocks that one vector of codes covers, where it covers more than one.
constexpr unsigned stepBlocks(unsigned bits) {
  return codeBytes * 8 / bits / blockSize > 1 ? codeBytes * 8 / bits / blockSize : 1;
}

// Sums that live in registers at the same time.
constexpr unsigned mostSums = codeBytes == 64 ? 16 : 8;

// Half of the interleaved codes of the components of a word, `low` or not: out[i] in lanes of 32
// bits. 4 bits: both halves of the byte; the lower is one position, the upper another.
template <unsigned bits, bool low>
inline void interleave(const unsigned char *const *rows, std::size_t at, Codes *out) {
  const Codes a = loadCodes(rows[0] + at), b = loadCodes(rows[1] + at);
  if (bits == 8) {
    const Codes ab = low ? low8(a, b) : high8(a, b);
    out[0] = low8(ab, Codes{});
    out[1] = high8(ab, Codes{});
  } else {
    const Codes c = loadCodes(rows[2] + at), d = loadCodes(rows[3] + at);
    const Codes ab = low ? low8(a, b) : high8(a, b), cd = low ? low8(c, d) : high8(c, d);
    out[0] = low16(ab, cd);
    out[1] = high16(ab, cd);
  }
}

// One half for H heads: S sums a head. Where there is no VNNI, sums of a few words are kept in
// lanes of 16 bits.
template <unsigned bits, unsigned H, bool low, unsigned S>
inline void addWord(const unsigned char *const *rows, std::size_t at, const Codes *coefficients,
                    Codes (*sums)[S], unsigned firstSum) {
  Codes codes[2];
  interleave<bits, low>(rows, at, codes);
  for (unsigned i = 0; i < 2; ++i) {
    if (bits == 8) {
      for (unsigned h = 0; h < H; ++h)
        sums[h][firstSum + i] = addPairs(sums[h][firstSum + i], codes[i], coefficients[h]);
    } else {
      const Codes first = firstCodes(codes[i]), second = secondCodes(codes[i]);
      for (unsigned h = 0; h < H; ++h) {
        sums[h][firstSum + 2 * i] = addQuads(sums[h][firstSum + 2 * i], first, coefficients[h]);
        sums[h][firstSum + 2 * i + 1] =
            addQuads(sums[h][firstSum + 2 * i + 1], second, coefficients[h]);
      }
    }
  }
}

// The dot products of the vector of codes at byte `at`, `halves` 1 or 2 of them from `low` on.
template <unsigned bits, unsigned H, bool low, unsigned halves, class Next>
inline void dotCodes(const CodesOfCell<Next> &cell, unsigned at, unsigned block,
                     Codes (*total)[halves * (bits == 4 ? 4 : 2)]) {
  constexpr unsigned each = componentsOfWord(bits), half = bits == 4 ? 4 : 2, S = halves * half;
  constexpr unsigned most = bits == 4 ? quadsTogether : ~0u;
  // Some of the next cell is asked for after each word; after each half of one where halves are
  // computed apart, or where it would be much at a time.
  constexpr unsigned fetches = halves == 1 || (bits == 4 && codeBytes == 64) ? 2 : 1;
  constexpr unsigned visits = cellBlocks * (blockSize * bits / 8) / codeBytes * fetches / each;
  const unsigned visited = (at / codeBytes * fetches + (low ? 0 : 1)) * cell.nWords;
  const Next next = cell.next.template paced<bits, visits>(cell.nWords);
  for (unsigned h = 0; h < H; ++h)
    for (unsigned s = 0; s < S; ++s)
      total[h][s] = Codes{};
  for (unsigned begin = 0; begin < cell.nWords;) {
    const unsigned end = cell.nWords - begin < most ? cell.nWords : begin + most;
    Codes sums[H][S];
    for (unsigned h = 0; h < H; ++h)
      for (unsigned s = 0; s < S; ++s)
        sums[h][s] = Codes{};
#pragma GCC unroll 2
    for (unsigned word = begin; word < end; ++word) {
      const unsigned char *const *const rows = cell.rows + word * each;
      Codes coefficients[H];
      for (unsigned h = 0; h < H; ++h)
        coefficients[h] = spread<bits>(cell.words + (word * H + h) * cellBlocks, block);
      addWord<bits, H, low, S>(rows, at, coefficients, sums, 0);
      if (fetches == 2)
        next.template visit<bits, visits>(visited + word * halves);
      if (halves == 2) {
        addWord<bits, H, false, S>(rows, at, coefficients, sums, half % S);
        next.template visit<bits, visits>(visited + word * fetches + fetches - 1);
      }
    }
    for (unsigned h = 0; h < H; ++h)
      for (unsigned s = 0; s < S; ++s)
        total[h][s] = addTotals(total[h][s], bits == 4 ? widenQuads(sums[h][s]) : sums[h][s]);
    begin = end;
  }
}

// `n` blocks (the last step of a cell may have fewer than stepBlocks) from `block`, H heads.
template <unsigned bits, unsigned H, bool low, unsigned halves, class Next>
inline void scoreHalves(const CodesOfCell<Next> &cell, CellOfHead *heads, unsigned block,
                        unsigned n, unsigned part) {
  constexpr unsigned S = halves * (bits == 4 ? 4 : 2);
  Codes total[H][S];
  dotCodes<bits, H, low, halves>(cell, block * (blockSize * bits / 8) + part * codeBytes, block,
                                 total);
#pragma GCC unroll 4
  for (unsigned h = 0; h < H; ++h) {
    for (unsigned s = 0; bits == 4 && s < S; s += 2)
      takeApart(total[h][s], total[h][s + 1 < S ? s + 1 : s]);
    CellOfHead &head = heads[h];
    const Vec unit = bitcast<Vec>(spread<bits>(head.unit, block)),
              offset = bitcast<Vec>(spread<bits>(head.offset, block)),
              factor = broadcast(head.invTau);
    for (unsigned s = 0; s < S; ++s) {
      const Vec product = unit * toFloat(total[h][s]);
      const Vec score = (product + offset) * factor;
      // 4 bits: sum s has 8 positions of each block; 8 bits: 16 of one, or the part's 8 of these.
      const unsigned position = (low ? s : s + S) * (bits == 4 ? 8 : 16) + part * 8;
      head.peak =
          maximum(putScores<bits>(head.scores + block * blockSize + position, score, n), head.peak);
    }
  }
}

template <unsigned bits, unsigned H, class Next>
inline void scoreBlocks(const CodesOfCell<Next> &cell, CellOfHead *heads, unsigned block,
                        unsigned n) {
  constexpr unsigned parts = blockSize * bits / 8 > codeBytes ? 2 : 1; // vectors of a block
  for (unsigned part = 0; part < parts; ++part) {
    if constexpr (H * (bits == 4 ? 8 : 4) <= mostSums) {
      scoreHalves<bits, H, true, 2>(cell, heads, block, n, part);
    } else {
      scoreHalves<bits, H, true, 1>(cell, heads, block, n, part);
      scoreHalves<bits, H, false, 1>(cell, heads, block, n, part);
    }
  }
}
