// SPDX-License-Identifier: Apache-2.0
//
// Rows of 8 bits (contract E10): headDim codes of a byte, then a bfloat16 scale for each group. The
// first scale has a sign if one of them is small. Loads may pass the end of a row by a vector.
#pragma once

#include "arith/row_codes.hpp"
#include "vectors.hpp"

// From this scale on, every number of a group is a multiple of the smallest fp16 number.
constexpr float plainScale = 0x1p-17f;

inline bool hasSmallScale(const unsigned char *row, unsigned headDim) {
  return row[headDim + 1] & 0x80;
}

using PairsVec = std::uint64_t __attribute__((vector_size(sizeof(Vec))));
using HalfPairs = std::uint16_t __attribute__((vector_size(sizeof(Vec) / 4)));

// The factors that CodedRow takes of each scale: 8193 times it, -8192 times it. May write a vector
// beyond the last.
inline void rowFactors(const unsigned char *row, unsigned headDim, float *to) {
  const Vec factors = bitcast<Vec>(PairsVec{} + (std::uint64_t(0xC6000000u) << 32 | 0x46000400u));
  const unsigned n = nRowScales(headDim), step = width / 2;
  for (unsigned i = 0; i < n; i += step) {
    HalfPairs bits;
    __builtin_memcpy(&bits, row + headDim + i * sizeof(bits[0]), sizeof(bits));
    const PairsVec scale = __builtin_convertvector(bits & std::uint16_t(0x7FFF), PairsVec);
    store(to + 2 * i, bitcast<Vec>(scale << 16 | scale << 48) * factors);
  }
}

// A row as fp32 numbers. To round x to the 11 significant bits of fp16 is to subtract 8192 x from
// 8193 x, which was rounded.
template <bool isSmall> struct CodedRow {
  const unsigned char *codes;
  const float *factors;

  // From component `first` on; the factors of row 0 are `factors`.
  CodedRow(const unsigned char *row, const float *factors, std::size_t i, unsigned first,
           unsigned headDim)
      : codes(row + first), factors(factors + i * 2 * nRowScales(headDim) + first / rowGroup * 2) {}
  static constexpr unsigned bytes(unsigned headDim) { return codedRow(headDim); }
  Vec vec(unsigned c) const {
    const float *const of = factors + c / rowGroup * 2;
    const Vec x = loadBytes(codes + c);
    if constexpr (isSmall) {
      Half half[width];
      storeHalf(half, x * (of[1] * -0x1p-13f));
      return loadHalf(half);
    }
    return addExactProduct(x, broadcast(of[1]), x * of[0]);
  }
};

inline void decodeRows(const unsigned char *rows, std::size_t n, unsigned headDim, Half *to) {
  for (; n > 0; --n, rows += codedRow(headDim))
    for (unsigned c = 0; c < headDim; c += width) {
      std::uint16_t bits;
      __builtin_memcpy(&bits, rows + headDim + c / rowGroup * sizeof(bits), sizeof(bits));
      Half half[width];
      storeHalf(half, loadBytes(rows + c) * bitcast<float>((bits & 0x7FFFu) << 16));
      const unsigned left = headDim - c, here = left < width ? left : width;
      __builtin_memcpy(to, half, here * sizeof(Half));
      to += here;
    }
}

inline void encodeRow(const Half *row, unsigned headDim, unsigned char *to) {
  bool isSmall = false;
  for (unsigned first = 0; first < headDim; first += rowGroup) {
    const unsigned left = headDim - first, n = left < rowGroup ? left : rowGroup;
    Half half[rowGroup] = {};
    __builtin_memcpy(half, row + first, n * sizeof(Half));
    Vec most{};
    for (unsigned i = 0; i < rowGroup; i += width)
      most = maximum(most, maximum(loadHalf(half + i), -loadHalf(half + i)));
    const float scale = rowScale(largestOf(most)), inverse = 1.0f / scale;
    signed char codes[rowGroup];
    for (unsigned i = 0; i < rowGroup; i += width) {
      const IntVec code = __builtin_convertvector(rowCode(loadHalf(half + i), inverse), IntVec);
      for (unsigned j = 0; j < width; ++j)
        codes[i + j] = static_cast<signed char>(code[j]);
    }
    __builtin_memcpy(to + first, codes, n);
    const auto bits = static_cast<std::uint16_t>(bitcast<std::uint32_t>(scale) >> 16);
    __builtin_memcpy(to + headDim + first / rowGroup * sizeof(bits), &bits, sizeof(bits));
    isSmall |= scale < plainScale;
  }
  if (isSmall)
    to[headDim + 1] |= 0x80;
}

inline void encodeRows(const Half *rows, std::size_t n, unsigned headDim, unsigned char *to) {
  for (std::size_t i = 0; i < n; ++i)
    encodeRow(rows + i * headDim, headDim, to + i * codedRow(headDim));
}
