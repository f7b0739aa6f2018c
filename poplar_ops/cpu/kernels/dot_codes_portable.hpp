// SPDX-License-Identifier: Apache-2.0
//
// Integer dot products of codes and coefficients in the compiler's own vectors, one head at a time.
#pragma once

#include "coded_cells.hpp"

using FourBytes = unsigned char __attribute__((vector_size(4)));

constexpr unsigned stepBlocks(unsigned) { return 1; }

// The coefficient of component j.
template <unsigned bits>
inline std::int32_t coefficientOf(const std::int32_t *words, unsigned j, unsigned block) {
  constexpr unsigned each = componentsOfWord(bits), shift = 32 - 32 / each;
  const auto word = static_cast<std::uint32_t>(words[j / each * cellBlocks + block]);
  return static_cast<std::int32_t>(word << (shift - j % each * (32 / each))) >> shift;
}

// Four positions, from `position` of the block.
inline void putScores(CellOfHead &head, unsigned block, unsigned position, Vec total) {
  const Vec product = broadcast(head.unit[block]) * total;
  const Vec score = (product + broadcast(head.offset[block])) * broadcast(head.invTau);
  store(head.scores + block * blockSize + position, score);
  head.peak = maximum(score, head.peak);
}

// Products of coefficients and codes, and sums of them, are exact in fp32.
template <unsigned bits>
inline void scoreBlock(const unsigned char *const *rows, const std::int32_t *words, unsigned n,
                       CellOfHead &head, unsigned block) {
  constexpr unsigned each = codesOfByte(bits), bytes = blockSize / each;
  constexpr auto mask = static_cast<unsigned char>(largestCode(bits));
  for (unsigned i = 0; i < bytes / 4; ++i) {
    Vec total[each] = {};
    for (unsigned j = 0; j < n; ++j) {
      const Vec a = broadcast(static_cast<float>(coefficientOf<bits>(words, j, block)));
      FourBytes codes;
      __builtin_memcpy(&codes, rows[j] + block * bytes + i * 4, sizeof(codes));
      for (unsigned k = 0; k < each; ++k) {
        const FourBytes code = codes >> static_cast<unsigned char>(bits * k) & mask;
        total[k] = total[k] + a * __builtin_convertvector(code, Vec);
      }
    }
    for (unsigned k = 0; k < each; ++k)
      putScores(head, block, firstPosition(bits, i / 4, i % 4, k), total[k]);
  }
}

template <unsigned bits, unsigned H>
inline void scoreBlocks(const CodesOfCell &cell, CellOfHead *heads, unsigned block, unsigned) {
  static_assert(H == 1, "one head at a time");
  constexpr unsigned visits = cellBlocks / componentsOfWord(bits);
  for (unsigned word = 0; word < cell.nWords; ++word)
    cell.next.visit<bits, visits>(block * cell.nWords + word);
  scoreBlock<bits>(cell.rows, cell.words, cell.nWords * componentsOfWord(bits), heads[0], block);
}
