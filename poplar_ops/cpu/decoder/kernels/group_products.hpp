// SPDX-License-Identifier: Apache-2.0
//
// Dot products of rows of integers with weights of 4, 6 or 8 bits (contract E15): four codes and
// four integers to a lane of 32 bits, as there are instructions for that.
#pragma once

#include "kernels/vectors.hpp"

// ---- rows of bfloat16 as integers of 8 or 16 bits, in tiles

// As many rows as there are registers for their sums, with two vectors of outputs.
constexpr unsigned rowsOfTile = width >= 8 ? 6 : 2;

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
  std::int32_t isWide; // some row has 16 bits
  RowOfGroup rows[rowsOfTile];
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

inline void storeBytes(signed char *to, IntVec x) {
#if defined(SPARQ_AVX2) // GCC would move each number by itself
  const __m256i all = bitcast<__m256i>(x);
  const __m128i words =
      _mm_packs_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i *>(to), _mm_packs_epi16(words, words));
#else
  using Bytes = signed char __attribute__((vector_size(width)));
  const Bytes bytes = __builtin_convertvector(x, Bytes);
  __builtin_memcpy(to, &bytes, sizeof(bytes));
#endif
}

template <bool isWide>
inline void roundGroup(const std::uint16_t *numbers, float largest, unsigned bits,
                       signed char *high, signed char *low, RowOfGroup &of) {
  constexpr float most = isWide ? 127 * 256 : 127, magic = 0x1.8p23f;
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
    storeBytes(high + i, ofHigh);
    highSum[half] += ofHigh;
    if (isWide) {
      const IntVec ofLow = integers - (ofHigh << 8);
      storeBytes(low + i, ofLow);
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

// ---- their products

// Without it GCC keeps sums in memory, or calls functions in the innermost loop.
#define SPARQ_INLINE inline __attribute__((always_inline))

// To nearest, ties to even, as ../floats.hpp.
inline void storeBfloat16(std::uint16_t *to, Vec x) {
  using Numbers = std::uint16_t __attribute__((vector_size(2 * width)));
  const BitsVec bits = bitcast<BitsVec>(x);
  const Numbers numbers =
      __builtin_convertvector((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16, Numbers);
  __builtin_memcpy(to, &numbers, sizeof(numbers));
}

// a.low * b.low + a.high * b.high of integers of 16 bits, in each lane.
inline IntVec productsOfPairs(IntVec a, IntVec b) {
#if defined(SPARQ_AVX512)
  return bitcast<IntVec>(_mm512_madd_epi16(bitcast<__m512i>(a), bitcast<__m512i>(b)));
#elif defined(SPARQ_AVX2)
  return bitcast<IntVec>(_mm256_madd_epi16(bitcast<__m256i>(a), bitcast<__m256i>(b)));
#elif defined(__SSE2__)
  using Shorts = short __attribute__((vector_size(16)));
  return bitcast<IntVec>(__builtin_ia32_pmaddwd128(bitcast<Shorts>(a), bitcast<Shorts>(b)));
#else
  return (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

// AVX2 adds in lanes of 16 bits, which have room for the 8 products of two inputs that a group has
// if codes have 4 bits: 8 * 2 * 15 * 128. So codes of 8 bits are split.
constexpr bool sumsPairs = width == 8;

// sum + the products of four codes, which have no sign, and four integers, in each lane of 32 bits;
// with AVX2 those of two, in each lane of 16.
inline IntVec addProducts(IntVec sum, IntVec codes, IntVec integers) {
#if defined(SPARQ_AVX512)
  return bitcast<IntVec>(_mm512_dpbusd_epi32(bitcast<__m512i>(sum), bitcast<__m512i>(codes),
                                             bitcast<__m512i>(integers)));
#elif defined(SPARQ_AVX2)
  __m256i now =
      _mm256_add_epi16(bitcast<__m256i>(sum),
                       _mm256_maddubs_epi16(bitcast<__m256i>(codes), bitcast<__m256i>(integers)));
  asm("" : "+x"(now)); // or GCC adds in another order, and keeps all products in memory
  return bitcast<IntVec>(now);
#else
  using Shorts = short __attribute__((vector_size(4 * width)));
  const Shorts both = bitcast<Shorts>(integers);
  return sum + productsOfPairs(codes & 0x00ff00ff, bitcast<IntVec>(both << 8 >> 8)) +
         productsOfPairs(codes >> 8 & 0x00ff00ff, bitcast<IntVec>(both >> 8));
#endif
}

// The sums of integers of a tile: of each row, one or two vectors of outputs. Recursion in place of
// an array: GCC keeps such arrays in memory.
template <unsigned rows, unsigned n> struct IntegerSums {
  IntegerSums<rows - 1, n> before;
  IntVec first, second;

  SPARQ_INLINE void start(const RowOfGroup *of, unsigned half) {
    before.start(of, half);
    first = second = IntVec{} + of[rows - 1].high[half];
  }
  // Adds low parts. Few rows have any, so each reads the codes again.
  template <class Weights>
  SPARQ_INLINE void addLow(const GroupOfTile &tile, const Weights &weights, unsigned half) {
    before.addLow(tile, weights, half);
    if (tile.rows[rows - 1].isWide) {
      IntegerSums<1, n> sums;
      weights.products(sums, tile.low[rows - 1], half, [&] {
        const IntVec add = IntVec{} + tile.rows[rows - 1].low[half];
        sums.first = (first << 8) + add;
        sums.second = (second << 8) + add;
      });
      first = sums.first;
      second = sums.second;
    }
  }
  SPARQ_INLINE void clear() {
    before.clear();
    first = second = IntVec{};
  }
  SPARQ_INLINE void addPairs(const IntegerSums &pairs, IntVec factors) {
    before.addPairs(pairs.before, factors);
    first += productsOfPairs(pairs.first, factors);
    second += productsOfPairs(pairs.second, factors);
  }
  SPARQ_INLINE void add(const signed char *integers, const IntVec *codes) {
    before.add(integers, codes);
    int word;
    __builtin_memcpy(&word, integers + (rows - 1) * weightGroup, sizeof(word));
    first = addProducts(first, codes[0], IntVec{} + word);
    if constexpr (n == 2)
      second = addProducts(second, codes[1], IntVec{} + word);
  }
};
template <unsigned n> struct IntegerSums<0, n> {
  SPARQ_INLINE void start(const RowOfGroup *, unsigned) {}
  template <class Weights>
  SPARQ_INLINE void addLow(const GroupOfTile &, const Weights &, unsigned) {}
  SPARQ_INLINE void clear() {}
  SPARQ_INLINE void addPairs(const IntegerSums &, IntVec) {}
  SPARQ_INLINE void add(const signed char *, const IntVec *) {}
};

// A group's weights of n vectors of outputs; vectors are `apart` bytes apart.
template <unsigned bits, unsigned n> struct Weights {
  static constexpr unsigned lines = codesBytes(bits) / 64;
  const unsigned char *at;
  std::size_t apart, scalesAt; // of the first vector, from `at`

  Weights group(std::size_t number) const {
    return {at + number * groupBytes(bits), apart, scalesAt};
  }
  enum class Part { whole, lower, upper };
  template <Part part> SPARQ_INLINE IntVec codes(unsigned line, unsigned vector) const {
    BitsVec bytes;
    __builtin_memcpy(&bytes, at + line * 64 + vector * apart, sizeof(bytes));
    return bitcast<IntVec>(part == Part::whole   ? bytes
                           : part == Part::lower ? bytes & 0x0f0f0f0fu
                                                 : bytes >> 4 & 0x0f0f0f0fu);
  }
  // The products of codes with a tile's high or low parts, added to what `start` sets the sums to:
  // of 6 bits, those of a half. AVX2 has no registers for these sums until the pairs are added.
  template <unsigned rows, class Start>
  SPARQ_INLINE void products(IntegerSums<rows, n> &sums, const signed char *integers, unsigned half,
                             const Start &start) const {
    if constexpr (!sumsPairs) {
      start();
      addLines<bits == 4 ? Part::lower : Part::whole>(sums, integers, half);
    } else {
      IntegerSums<rows, n> pairs;
      pairs.clear();
      addLines<Part::lower>(pairs, integers, half);
      start();
      sums.addPairs(pairs, IntVec{} + 0x00010001);
      if constexpr (bits != 4) {
        pairs.clear();
        addLines<Part::upper>(pairs, integers, half);
        sums.addPairs(pairs, IntVec{} + 0x00100010);
      }
    }
  }
  template <Part part, unsigned rows>
  SPARQ_INLINE void addLines(IntegerSums<rows, n> &sums, const signed char *integers,
                             unsigned half) const {
    constexpr unsigned together = bits == 6 ? lines / 2 : lines;
#pragma GCC unroll 8
    for (unsigned number = 0; number < together; ++number) {
      const unsigned i = half * together + number;
      addLine<part>(sums, integers + 4 * i, i);
      if constexpr (bits == 4)
        addLine<Part::upper>(sums, integers + 16 + 4 * i, i);
      asm volatile("" ::: "memory"); // or GCC loads all codes first, and spills sums
    }
  }
  template <Part part, unsigned rows>
  SPARQ_INLINE void addLine(IntegerSums<rows, n> &sums, const signed char *integers,
                            unsigned line) const {
    IntVec of[n];
    for (unsigned v = 0; v < n; ++v)
      of[v] = codes<part>(line, v);
    sums.add(integers, of);
  }
  // Scales are 0, zeros 1; of 6 bits the scales of the second half.
  SPARQ_INLINE Vec scales(unsigned which, unsigned vector) const {
    const std::size_t next = width == blockOutputs ? apart : width * sizeof(Half);
    return loadHalf(reinterpret_cast<const Half *>(at + scalesAt + which * 32 + vector * next));
  }
};

template <unsigned rows, unsigned n> struct Outputs {
  Outputs<rows - 1, n> before;
  Vec first, second;

  SPARQ_INLINE void clear() {
    before.clear();
    first = second = Vec{};
  }
  // What a group's sums add.
  SPARQ_INLINE void add(const IntegerSums<rows, n> &sums, const Vec *scale, const RowOfGroup *of) {
    before.add(sums.before, scale, of);
    const Vec step = broadcast(of[rows - 1].step);
    const auto added = [&](IntVec sum, unsigned vector) {
      return scale[vector] * __builtin_convertvector(sum, Vec) * step;
    };
    first += added(sums.first, 0);
    if constexpr (n == 2)
      second += added(sums.second, 1);
  }
  SPARQ_INLINE void addZeros(const Vec *zero, const RowOfGroup *of) {
    before.addZeros(zero, of);
    const Vec sum = broadcast(of[rows - 1].sum);
    first += zero[0] * sum;
    if constexpr (n == 2)
      second += zero[1] * sum;
  }
  SPARQ_INLINE void put(const GroupProducts &a, std::uint16_t *to) {
    before.put(a, to);
    std::uint16_t *const row = to + (rows - 1) * a.stride;
    storeBfloat16(row, first);
    if constexpr (n == 2)
      storeBfloat16(row + width, second);
  }
};
template <unsigned n> struct Outputs<0, n> {
  SPARQ_INLINE void clear() {}
  SPARQ_INLINE void add(const IntegerSums<0, n> &, const Vec *, const RowOfGroup *) {}
  SPARQ_INLINE void addZeros(const Vec *, const RowOfGroup *) {}
  SPARQ_INLINE void put(const GroupProducts &, std::uint16_t *) {}
};

// The n vectors of outputs that a pass over the weights computes.
template <unsigned bits, unsigned n> struct Column {
  Weights<bits, n> weights;
  std::uint16_t *output;
  bool hasZeros; // some zero may not be 0
  // The share of the next column that the next full tile prefetches, and its bytes for each group.
  const unsigned char *next;
  std::size_t share;
};

// Adds the products of all groups. A group's sums stay in registers.
template <unsigned bits, unsigned rows, unsigned n>
__attribute__((noinline)) void tileProducts(const GroupProducts &a, const Column<bits, n> &column,
                                            const GroupOfTile *tile, std::uint16_t *output) {
  Weights<bits, n> weights = column.weights;
  Outputs<rows, n> outputs;
  const unsigned char *next = column.next;
  outputs.clear();
  for (std::size_t group = 0; group < a.groups; ++group, ++tile, weights.at += groupBytes(bits)) {
    if constexpr (rows == rowsOfTile) {
      for (std::size_t line = 0; line < column.share; line += 64)
        fetchLine<2>(next + line);
      next += column.share;
    } else {
      for (unsigned v = 0; v < (width == blockOutputs ? n : 1); ++v)
        for (unsigned line = 0; line < groupBytes(bits); line += 64)
          fetchLine<2>(weights.at + v * weights.apart + line + a.ahead);
    }
    for (unsigned half = 0; half < (bits == 6 ? 2 : 1); ++half) {
      IntegerSums<rows, n> sums;
      weights.products(sums, tile->high[0], half, [&] { sums.start(tile->rows, half); });
      if (tile->isWide)
        sums.addLow(*tile, weights, half);
      Vec scale[n];
      for (unsigned v = 0; v < n; ++v)
        scale[v] = weights.scales(half, v);
      outputs.add(sums, scale, tile->rows);
    }
    if (bits != 6 && column.hasZeros) {
      Vec zero[n];
      for (unsigned v = 0; v < n; ++v)
        zero[v] = weights.scales(1, v);
      outputs.addZeros(zero, tile->rows);
    }
  }
  outputs.put(a, output);
}

// The last tile may have fewer rows than the others.
template <unsigned bits, unsigned rows, unsigned n>
inline void someRows(const GroupProducts &a, const Column<bits, n> &column, const GroupOfTile *tile,
                     std::size_t nRows, std::uint16_t *output) {
  if constexpr (rows > 1)
    if (nRows < rows)
      return someRows<bits, rows - 1, n>(a, column, tile, nRows, output);
  tileProducts<bits, rows, n>(a, column, tile, output);
}

template <unsigned bits, unsigned n>
inline void columnProducts(const GroupProducts &a, unsigned vector) {
  constexpr unsigned parts = blockOutputs / width;
  const std::size_t block = a.groups * groupBytes(bits);
  const std::size_t at = vector % parts * sizeof(Vec); // in a line
  const unsigned char *const weights = a.weights + vector / parts * block;
  const unsigned blocks = parts == 1 ? n : 1;
  const std::size_t tiles = (a.nRows + rowsOfTile - 1) / rowsOfTile;
  Column<bits, n> column{
      {weights + at, parts == 1 ? block : sizeof(Vec), codesBytes(bits) - at / 2},
      a.output + vector * width,
      tiles == 1,
      weights + blocks * block,
      blocks * groupBytes(bits) / tiles};
  // Zeros of 0 change no bit. To look for others before a single tile would read weights twice.
  // The loop ends early where the first output has one.
  BitsVec zeros{};
  for (std::size_t group = 0; bits != 6 && tiles > 1 && !zeros[0] && group < a.groups; ++group)
    for (unsigned v = 0; v < n; ++v)
      zeros |= bitcast<BitsVec>(column.weights.group(group).scales(1, v)) << 1; // -0 is one
  for (unsigned i = 0; i < width; ++i)
    column.hasZeros |= zeros[i] != 0;
  const auto *tile = reinterpret_cast<const GroupOfTile *>(a.tiles);
  for (std::size_t row = 0; row < a.nRows; row += rowsOfTile, tile += a.groups) {
    someRows<bits, rowsOfTile>(a, column, tile, a.nRows - row, column.output + row * a.stride);
    column.next += a.groups * column.share;
  }
}

template <unsigned bits> inline void allColumns(const GroupProducts &a) {
  const unsigned vectors = static_cast<unsigned>(a.blocks) * blockOutputs / width;
  // Memory limits a single row: one block after the other is read, in the order of addresses.
  if (width == blockOutputs && a.nRows == 1) {
    for (unsigned vector = 0; vector < vectors; ++vector)
      columnProducts<bits, 1>(a, vector);
    return;
  }
  for (unsigned vector = 0; vector + 1 < vectors; vector += 2)
    columnProducts<bits, 2>(a, vector);
  if (vectors % 2)
    columnProducts<bits, 1>(a, vectors - 1);
}

inline void groupProducts(const GroupProducts &a) {
  if (a.bits == 4)
    allColumns<4>(a);
  else if (a.bits == 6)
    allColumns<6>(a);
  else
    allColumns<8>(a);
}
