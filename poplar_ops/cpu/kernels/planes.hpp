// SPDX-License-Identifier: Apache-2.0
//
// Planes of bits (contract E12) to codes and back. A cell's codes are made in the order of
// key_cells.hpp before its dot products, once for all heads: vectors of bytes are interleaved bit by
// bit, by shifts and masks of whole vectors.
#pragma once

#include "../key_planes.hpp"
#include "vectors.hpp"

constexpr unsigned planeVectors = PlaneLayout::line / sizeof(BitsVec);

// Bits of `mask` of x, and of y the others, moved there by `by`; and the bits that are left. Of both
// those that x and y had side by side in a byte are now one after the other. Bits that were not read
// are 0, and cost nothing.
template <unsigned by, bool hasX, bool hasY>
inline void interleaveBits(BitsVec x, BitsVec y, BitsVec &high, BitsVec &low) {
  constexpr unsigned mask = by == 1 ? 0xAAAAAAAAu : by == 2 ? 0xCCCCCCCCu : 0xF0F0F0F0u;
  const BitsVec masks = BitsVec{} + mask;
  if constexpr (hasY) {
    high = selectBits(masks, x, y >> by);
    low = selectBits(masks, x << by, y);
  } else if constexpr (hasX) {
    high = x & masks;
    low = (x << by) & masks;
  } else {
    high = low = BitsVec{};
  }
}

// The codes of n lines of eight blocks, from the first `depth` planes; `planes`: the lines of the
// first plane.
template <unsigned bits, unsigned depth>
inline void codesOfLines(const unsigned char *planes, std::size_t stride, unsigned n,
                         unsigned char *to) {
  for (unsigned i = 0; i < n * planeVectors; ++i) {
    const unsigned v = i % planeVectors;
    BitsVec one[bits], two[bits], four[bits];
    for (unsigned t = 0; t < bits; ++t)
      if (t < depth)
        __builtin_memcpy(&one[t], planes + t * stride + i * sizeof(BitsVec), sizeof(BitsVec));
      else
        one[t] = BitsVec{};
    // one[t]: plane t. two[t]: planes t and t + 1 of the odd bits, or t - 1 and t of the even ones.
    interleaveBits<1, (depth > 0), (depth > 1)>(one[0], one[1], two[0], two[1]);
    interleaveBits<1, (depth > 2), (depth > 3)>(one[2], one[3], two[2], two[3]);
    // four[i]: four planes, of bits 3 - i and 7 - i in the order 3, 1, 2, 0.
    interleaveBits<2, (depth > 0), (depth > 2)>(two[0], two[2], four[3], four[1]);
    interleaveBits<2, (depth > 0), (depth > 2)>(two[1], two[3], four[2], four[0]);
    if constexpr (bits == 8) {
      interleaveBits<1, (depth > 4), (depth > 5)>(one[4], one[5], two[4], two[5]);
      interleaveBits<1, (depth > 6), (depth > 7)>(one[6], one[7], two[6], two[7]);
      interleaveBits<2, (depth > 4), (depth > 6)>(two[4], two[6], four[7], four[5]);
      interleaveBits<2, (depth > 4), (depth > 6)>(two[5], two[7], four[6], four[4]);
      BitsVec all[8];
      for (unsigned m = 0; m < 4; ++m)
        interleaveBits<4, (depth > 0), (depth > 4)>(four[m], four[m + 4], all[m + 4], all[m]);
      for (unsigned m = 0; m < 8; ++m)
        four[m] = all[m];
    }
    unsigned char *const line = to + i / planeVectors * bits * PlaneLayout::line;
    for (unsigned m = 0; m < bits; ++m)
      __builtin_memcpy(line + m * PlaneLayout::line + v * sizeof(BitsVec), &four[m],
                       sizeof(BitsVec));
  }
}

template <unsigned bits, unsigned depth = 1>
inline void codesOfLinesTo(unsigned wanted, const unsigned char *planes, std::size_t stride,
                           unsigned n, unsigned char *to) {
  if constexpr (depth < bits) {
    if (wanted != depth) {
      codesOfLinesTo<bits, depth + 1>(wanted, planes, stride, n, to);
      return;
    }
  }
  codesOfLines<bits, depth>(planes, stride, n, to);
}

// A block's codes into the planes of its cell.
template <unsigned bits>
inline void putPlanes(const unsigned char *codes, unsigned inCell, unsigned char *planes,
                      std::size_t stride) {
  constexpr unsigned n = blockSize * bits / 8;
  const std::size_t at = inCell % PlaneLayout::lineBlocks * n;
  const auto shift = static_cast<unsigned>(at / PlaneLayout::line);
  const unsigned mask = (bits == 4 ? 0x11u : 1u) << shift;
  planes += inCell / PlaneLayout::lineBlocks * PlaneLayout::line + at % PlaneLayout::line;
  for (unsigned t = 0; t < bits; ++t)
    for (unsigned i = 0; i < n; ++i) {
      unsigned char &to = planes[t * stride + i];
      to = static_cast<unsigned char>((to & ~mask) |
                                      (((unsigned(codes[i]) >> (bits - 1 - t)) << shift) & mask));
    }
}
