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

// Components [first, end) as fp16 numbers.
inline void decodeRow(const unsigned char *row, unsigned headDim, Half *to, unsigned first,
                      unsigned end) {
  for (unsigned c = first; c < end; c += width) {
    std::uint16_t bits;
    __builtin_memcpy(&bits, row + headDim + c / rowGroup * sizeof(bits), sizeof(bits));
    const Vec x = loadBytes(row + c) * bitcast<float>((bits & 0x7FFFu) << 16);
    if (c + width <= end) {
      storeHalf(to + c - first, x);
      continue;
    }
    Half last[width];
    storeHalf(last, x);
    __builtin_memcpy(to + c - first, last, (end - c) * sizeof(Half));
  }
}

// The same numbers in fp32; writes whole vectors. To round x to the 11 significant bits of fp16 is
// to subtract 8192 x from 8193 x, which was rounded.
template <class Dim> inline void decodeRow(const unsigned char *row, Dim headDim, float *to) {
  if (hasSmallScale(row, headDim)) {
    for (unsigned c = 0; c < headDim; c += width) {
      Half half[width] = {};
      decodeRow(row, headDim, half, c, c + width < headDim ? c + width : headDim);
      store(to + c, loadHalf(half));
    }
    return;
  }
  for (unsigned c = 0; c < headDim; c += width) {
    unsigned bits; // of the scale the upper half. (Scales that pass through memory: twice as slow.)
    __builtin_memcpy(&bits, row + headDim + c / rowGroup * 2 - 2, sizeof(bits));
    const Vec x = loadBytes(row + c) * bitcast<Vec>((BitsVec{} + bits) & 0xFFFF0000u);
    store(to + c, addExactProduct(x, broadcast(-8192.0f), x * 8193.0f));
  }
}

inline void decodeRows(const unsigned char *rows, std::size_t n, unsigned headDim, Half *to) {
  for (std::size_t i = 0; i < n; ++i)
    decodeRow(rows + i * codedRow(headDim), headDim, to + i * headDim, 0, headDim);
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
