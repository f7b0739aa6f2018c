// SPDX-License-Identifier: Apache-2.0
//
// Rows of bfloat16 as integers of 8 or 16 bits (contract E15), in tiles for group_products.hpp.
#pragma once

#include "kernels/vectors.hpp"

// As many rows as there are registers for their sums, with two vectors of outputs.
constexpr unsigned rowsOfTile = width == 16 ? 6 : 2;

// Subtracted from codes, which are stored without a sign.
constexpr int codeOffset(unsigned bits) { return bits == 4 ? 8 : 128; }

// A row's part of a group. Integers of 16 bits are 256 high + low.
struct RowOfGroup {
  // What the offset of codes adds to the sums of high parts, and of low ones; with 6 bits those of
  // each half.
  std::int32_t high[2], low[2];
  std::int32_t isWide; // has 16 bits
  float step, sum;     // the sum of the integers times the step
};
struct alignas(64) GroupOfTile {
  signed char high[rowsOfTile][weightGroup];
  RowOfGroup rows[rowsOfTile];
  std::int32_t isWide; // some row has 16 bits
  signed char low[rowsOfTile][weightGroup];
};

// The largest magnitude; below the first power it is 0, from the second on infinite.
constexpr float leastMagnitude = 0x1p-100f, infiniteMagnitude = 0x1p120f;
// A group has 16 bits where its largest magnitude is more than this many times the row's mean.
constexpr float wideFrom(unsigned bits) { return bits == 4 ? 3 : 1.5f; }

inline Vec loadBfloat16(const std::uint16_t *from) {
  std::uint16_t __attribute__((vector_size(2 * width))) numbers;
  __builtin_memcpy(&numbers, from, sizeof(numbers));
  return bitcast<Vec>(__builtin_convertvector(numbers, BitsVec) << 16);
}

inline float largestMagnitude(const std::uint16_t *numbers) {
  std::uint16_t largest = 0;
  for (unsigned i = 0; i < weightGroup; ++i) {
    const std::uint16_t magnitude = numbers[i] & 0x7fff;
    largest = magnitude > largest ? magnitude : largest;
  }
  const float number = bitcast<float>(static_cast<unsigned>(largest) << 16);
  return number < leastMagnitude ? 0 : number; // a NaN stays one
}

template <bool isWide>
inline void roundGroup(const std::uint16_t *numbers, float largest, unsigned bits,
                       signed char *high, signed char *low, RowOfGroup &of) {
  constexpr float most = isWide ? 127 * 256 : 127, magic = 0x1.8p23f;
  using Bytes = signed char __attribute__((vector_size(width)));
  of.isWide = isWide;
  if (!(largest < infiniteMagnitude)) { // the integers could overflow their sums
    __builtin_memset(high, 0, weightGroup);
    __builtin_memset(low, 0, weightGroup);
    __builtin_memset(&of, 0, sizeof(of));
    of.step = of.sum = bitcast<float>(0x7fc00000u);
    return;
  }
  const float inverse = largest > 0 ? most / largest : 0;
  IntVec highSum[2]{}, lowSum[2]{};
  for (unsigned i = 0; i < weightGroup; i += width) {
    const unsigned half = bits == 6 && i >= weightGroup / 2;
    const Vec scaled = loadBfloat16(numbers + i) * broadcast(inverse);
    // To nearest, ties to even.
    const IntVec integers = bitcast<IntVec>(scaled + broadcast(magic)) - bitcast<int>(magic);
    const IntVec ofHigh = isWide ? (integers + 128) >> 8 : integers;
    const Bytes highBytes = __builtin_convertvector(ofHigh, Bytes);
    __builtin_memcpy(high + i, &highBytes, sizeof(highBytes));
    highSum[half] += ofHigh;
    if (isWide) {
      const IntVec ofLow = integers - (ofHigh << 8);
      const Bytes lowBytes = __builtin_convertvector(ofLow, Bytes);
      __builtin_memcpy(low + i, &lowBytes, sizeof(lowBytes));
      lowSum[half] += ofLow;
    }
  }
  int all = 0;
  for (unsigned half = 0; half < (bits == 6 ? 2 : 1); ++half) {
    const int sumOfHigh = sumOf(highSum[half]), sumOfLow = isWide ? sumOf(lowSum[half]) : 0;
    of.high[half] = -codeOffset(bits) * sumOfHigh;
    of.low[half] = -codeOffset(bits) * sumOfLow;
    all += sumOfHigh * (isWide ? 256 : 1) + sumOfLow;
  }
  of.step = largest * (1 / most);
  of.sum = of.step * static_cast<float>(all);
}

inline void roundRows(const RoundRows &a) {
  auto *const tile = reinterpret_cast<GroupOfTile *>(a.tile);
  for (std::size_t group = 0; group < a.groups; ++group)
    tile[group].isWide = 0;
  for (std::size_t row = 0; row < a.nRows; ++row) {
    const std::uint16_t *const numbers = a.rows + row * a.groups * weightGroup;
    float sum = 0;
    for (std::size_t group = 0; group < a.groups; ++group) {
      const float largest = largestMagnitude(numbers + group * weightGroup);
      tile[group].rows[row].step = largest;
      sum += largest < infiniteMagnitude ? largest : 0;
    }
    const float limit = sum * wideFrom(a.bits), n = static_cast<float>(a.groups);
    for (std::size_t group = 0; group < a.groups; ++group) {
      GroupOfTile &to = tile[group];
      RowOfGroup &of = to.rows[row];
      const std::uint16_t *const from = numbers + group * weightGroup;
      if (of.step * n > limit) {
        roundGroup<true>(from, of.step, a.bits, to.high[row], to.low[row], of);
        to.isWide = 1;
      } else {
        roundGroup<false>(from, of.step, a.bits, to.high[row], to.low[row], of);
      }
    }
  }
}
