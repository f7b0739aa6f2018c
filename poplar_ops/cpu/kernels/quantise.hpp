// SPDX-License-Identifier: Apache-2.0
//
// Quantising one block of 64 keys (contract E9), vectorised over components.
#pragma once

#include "vectors.hpp"

// Codes of `width` components at one position.
struct Coder {
  Vec low, inverse, most;
  BitsVec operator()(const Half *position) const {
    const Vec code = (loadHalf(position) - low) * inverse + integerShift;
    return bitcast<BitsVec>(code < most ? code : most) & 0xFFu;
  }
};

// Four bytes of a block's codes, from byte 16 L + 4 r: the order of key_cells.hpp.
template <unsigned bits>
inline BitsVec fourBytes(const Coder &code, const Half (*block)[width], unsigned L, unsigned r) {
  BitsVec four{};
  for (unsigned i = 0; i < 4; ++i) {
    BitsVec byte{};
    for (unsigned n = 0; n < codesOfByte(bits); ++n)
      byte |= code(block[firstPosition(bits, L, r, n) + i]) << (bits * n);
    four |= byte << (8 * i);
  }
  return four;
}

// Stores codes, step and lowest value of component c where the index keeps them.
inline void putInCell(const QuantiseBlock &a, unsigned c, const std::uint32_t *codes, std::size_t n,
                      Half step, Half low) {
  const CellLayout layout{a.cells.bits, a.cells.nComponents, a.cells.blocks};
  const std::size_t cell = a.block / cellBlocks, inCell = a.block % cellBlocks;
  unsigned char *const to = a.cells.start + layout.cellAt(c, cell);
  __builtin_memcpy(to + inCell * n, codes, n);
  unsigned char *const steps = to + layout.stepsAt(cell) + inCell * sizeof(Half);
  __builtin_memcpy(steps, &step, sizeof(Half));
  __builtin_memcpy(steps + cellBlocks * sizeof(Half), &low, sizeof(Half));
}

// Components [c, c + n) of a block, n at most `width`.
template <unsigned bits>
inline void quantiseComponents(const QuantiseBlock &a, unsigned c, unsigned n) {
  constexpr float maxCode = largestCode(bits);
  constexpr unsigned nWords = codeWords(bits);
  Half block[blockSize][width] = {};
  for (unsigned p = 0; p < blockSize; ++p)
    __builtin_memcpy(block[p], a.rows + p * a.headDim + c, n * sizeof(Half));
  Vec low = loadHalf(block[0]), high = low;
  for (unsigned p = 1; p < blockSize; ++p) {
    const Vec x = loadHalf(block[p]);
    low = x < low ? x : low;
    high = x > high ? x : high;
  }
  Half steps[width], lows[width];
  storeHalf(steps, (high - low) * (1.0f / maxCode));
  storeHalf(lows, low);
  const Vec step = loadHalf(steps), one = broadcast(1.0f);
  // Where step is 0, differences from the lowest value are far below 1/2: every code is 0.
  const Vec inverse = one / (step > 0.0f ? step : one);
  const Coder code{low, inverse, broadcast(integerShift + maxCode)};

  std::uint32_t words[nWords][width];
  for (unsigned L = 0; L < nWords / 4; ++L)
    for (unsigned r = 0; r < 4; ++r) {
      const BitsVec four = fourBytes<bits>(code, block, L, r);
      __builtin_memcpy(words[4 * L + r], &four, sizeof(four));
    }
  for (unsigned j = 0; j < n; ++j) {
    std::uint32_t codes[nWords];
    for (unsigned w = 0; w < nWords; ++w)
      codes[w] = words[w][j];
    putInCell(a, c + j, codes, sizeof(codes), steps[j], lows[j]);
  }
}

inline void quantiseBlock(const QuantiseBlock &a) {
  for (unsigned c = 0; c < a.cells.nComponents; c += width) {
    const unsigned left = a.cells.nComponents - c, n = left < width ? left : width;
    if (a.cells.bits == 8)
      quantiseComponents<8>(a, c, n);
    else if (a.cells.bits == 2)
      quantiseComponents<2>(a, c, n);
    else
      quantiseComponents<4>(a, c, n);
  }
}
