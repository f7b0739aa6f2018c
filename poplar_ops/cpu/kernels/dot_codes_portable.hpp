// SPDX-License-Identifier: Apache-2.0
//
// Integer dot products of codes and coefficients in the compiler's own vectors, one head at a time.
#pragma once

#include "coded_cells.hpp"

using Bytes = unsigned char __attribute__((vector_size(8)));
using Shorts = short __attribute__((vector_size(16)));
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

inline Vec toFloat(Shorts x, unsigned from) {
  return Vec{static_cast<float>(x[from]), static_cast<float>(x[from + 1]),
             static_cast<float>(x[from + 2]), static_cast<float>(x[from + 3])};
}

// 4 or 2 bits.
template <unsigned bits>
inline void scoreBlockOfFewBits(const unsigned char *const *rows, const std::int32_t *words,
                                unsigned n, CellOfHead &head, unsigned block) {
  constexpr unsigned each = codesOfByte(bits), bytes = blockSize / each, pieces = bytes / 8;
  // Products, of at most 15 * 127 or 3 * 127, that fit into 16 bits.
  constexpr unsigned together = bits == 4 ? 16 : 84;
  constexpr auto mask = static_cast<short>(largestCode(bits));
  Vec total[each][bytes / 4] = {};
  for (unsigned begin = 0; begin < n; begin += together) {
    const unsigned end = n - begin < together ? n : begin + together;
    Shorts sums[each][pieces] = {};
    for (unsigned j = begin; j < end; ++j) {
      const auto a = static_cast<short>(coefficientOf<bits>(words, j, block));
      for (unsigned i = 0; i < pieces; ++i) {
        Bytes codes;
        __builtin_memcpy(&codes, rows[j] + block * bytes + i * 8, sizeof(codes));
        const Shorts wide = __builtin_convertvector(codes, Shorts);
        for (unsigned k = 0; k < each; ++k) {
          const Shorts code = wide >> static_cast<short>(bits * k);
          sums[k][i] += (k + 1 < each ? code & mask : code) * a;
        }
      }
    }
    for (unsigned k = 0; k < each; ++k)
      for (unsigned i = 0; i < bytes / 4; ++i)
        total[k][i] = total[k][i] + toFloat(sums[k][i / 2], i % 2 * 4);
  }
  for (unsigned i = 0; i < bytes / 4; ++i)
    for (unsigned k = 0; k < each; ++k)
      putScores(head, block, firstPosition(bits, i / 4, i % 4, k), total[k][i]);
}

// Products of coefficients and codes, and sums of them, are exact in fp32 too.
inline void scoreBlock8(const unsigned char *const *rows, const std::int32_t *words, unsigned n,
                        CellOfHead &head, unsigned block) {
  constexpr unsigned together = 8; // sums of four that live in registers
  for (unsigned first = 0; first < blockSize / 4; first += together) {
    Vec total[together] = {};
    for (unsigned j = 0; j < n; ++j) {
      const Vec a = broadcast(static_cast<float>(coefficientOf<8>(words, j, block)));
      for (unsigned i = 0; i < together; ++i) {
        FourBytes codes;
        __builtin_memcpy(&codes, rows[j] + block * blockSize + (first + i) * 4, sizeof(codes));
        total[i] = total[i] + a * __builtin_convertvector(codes, Vec);
      }
    }
    for (unsigned i = 0; i < together; ++i)
      putScores(head, block, firstPosition(8, (first + i) / 4, (first + i) % 4, 0), total[i]);
  }
}

template <unsigned bits, unsigned H>
inline void scoreBlocks(const CodesOfCell &cell, CellOfHead *heads, unsigned block, unsigned) {
  static_assert(H == 1, "one head at a time");
  constexpr unsigned visits = cellBlocks / componentsOfWord(bits);
  for (unsigned word = 0; word < cell.nWords; ++word)
    cell.next.visit<bits, visits>(block * cell.nWords + word);
  if constexpr (bits == 8)
    scoreBlock8(cell.rows, cell.words, cell.nWords * 2, heads[0], block);
  else
    scoreBlockOfFewBits<bits>(cell.rows, cell.words, cell.nWords * 4, heads[0], block);
}
