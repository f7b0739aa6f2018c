// SPDX-License-Identifier: Apache-2.0
//
// Sums of products of a tile of rows and columns, which stay in registers: of pairs of integers of
// 16 bits in a lane of 32 bits, as there are instructions for that, or of fp32 in a fixed order.
#pragma once

#include "vectors.hpp"

// Rows of a tile of products, which has up to four vectors a row: as many sums as registers.
constexpr unsigned tileRows = width == 16 ? 6 : width == 8 ? 3 : 2;

inline IntVec loadInts(const std::int32_t *from) {
  IntVec x;
  __builtin_memcpy(&x, from, sizeof(x));
  return x;
}
inline void storeInts(std::int32_t *to, IntVec x) { __builtin_memcpy(to, &x, sizeof(x)); }
inline IntVec inPairs(BitsVec low, BitsVec high) {
  return bitcast<IntVec>((low & 0xFFFFu) | high << 16);
}

// Two integers in a lane.
struct IntegerPairs {
  using Lane = std::int32_t;
  using Vector = IntVec;
  static constexpr unsigned perLane = 2;
  static inline IntVec load(const std::int32_t *from) { return loadInts(from); }
  static inline IntVec spread(std::int32_t x) { return IntVec{} + x; }
  static inline Vec toFloat(IntVec x) { return __builtin_convertvector(x, Vec); }
  // sum + a.low * b.low + a.high * b.high, in each lane.
  static inline IntVec add(IntVec sum, IntVec a, IntVec b) {
#if defined(SPARQ_AVX512)
    return bitcast<IntVec>(
        _mm512_dpwssd_epi32(bitcast<__m512i>(sum), bitcast<__m512i>(a), bitcast<__m512i>(b)));
#elif defined(SPARQ_AVX2)
    return sum + bitcast<IntVec>(_mm256_madd_epi16(bitcast<__m256i>(a), bitcast<__m256i>(b)));
#elif defined(__SSE2__)
    using Shorts = short __attribute__((vector_size(16)));
    return sum + bitcast<IntVec>(__builtin_ia32_pmaddwd128(bitcast<Shorts>(a), bitcast<Shorts>(b)));
#else
    return sum + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
  }
};

// One number in a lane. Never fused: NumPy has no fused multiply-add.
struct Floats {
  using Lane = float;
  using Vector = Vec;
  static constexpr unsigned perLane = 1;
  static inline Vec load(const float *from) {
    Vec x;
    __builtin_memcpy(&x, from, sizeof(x));
    return x;
  }
  static inline Vec spread(float x) { return broadcast(x); }
  static inline Vec toFloat(Vec x) { return x; }
  static inline Vec add(Vec sum, Vec a, Vec b) { return sum + a * b; }
};

// One row of a tile. Recursion in place of an array: GCC keeps such arrays in memory.
template <typename Number, unsigned n> struct TileRow {
  using Vector = typename Number::Vector;
  TileRow<Number, n - 1> before;
  Vector sum{};
  inline void add(Vector query, const Vector *row) {
    before.add(query, row);
    sum = Number::add(sum, query, row[n - 1]);
  }
  template <typename Finish>
  inline void finish(const Finish &to, unsigned row, unsigned column) const {
    before.finish(to, row, column);
    to(row, column + (n - 1) * width, Number::toFloat(sum));
  }
};
template <typename Number> struct TileRow<Number, 0> {
  inline void add(typename Number::Vector, const typename Number::Vector *) {}
  template <typename Finish> inline void finish(const Finish &, unsigned, unsigned) const {}
};

template <typename Number, unsigned rows, unsigned n> struct Tile {
  using Lane = typename Number::Lane;
  Tile<Number, rows - 1, n> before;
  TileRow<Number, n> row;
  inline void add(const Lane *left, std::size_t stride, const typename Number::Vector *right) {
    before.add(left, stride, right);
    row.add(Number::spread(left[(rows - 1) * stride]), right);
  }
  template <typename Finish> inline void finish(const Finish &to, unsigned column) const {
    before.finish(to, column);
    row.finish(to, rows - 1, column);
  }
};
template <typename Number, unsigned n> struct Tile<Number, 0, n> {
  inline void add(const typename Number::Lane *, std::size_t, const typename Number::Vector *) {}
  template <typename Finish> inline void finish(const Finish &, unsigned) const {}
};

template <typename Number> struct TileProducts {
  const typename Number::Lane *left; // (tileRows, leftStride)
  std::size_t leftStride;
  const typename Number::Lane *right; // (lanes, rightStride)
  std::size_t rightStride;
  unsigned lanes;
};

// n vectors from a column on. Not inlined: with a constant number of lanes GCC unrolls the loop and
// spills the sums.
template <unsigned n, typename Number, typename Finish>
__attribute__((noinline)) void tile(const TileProducts<Number> &p, unsigned column,
                                    const Finish &to) {
  Tile<Number, tileRows, n> sums;
  const typename Number::Lane *right = p.right + column;
  for (unsigned lane = 0; lane < p.lanes; ++lane, right += p.rightStride) {
    typename Number::Vector vectors[n];
    for (unsigned i = 0; i < n; ++i)
      vectors[i] = Number::load(right + i * width);
    sums.add(p.left + lane, p.leftStride, vectors);
  }
  const Finish own = to; // else its members are read again after each store
  sums.finish(own, column);
}

// All columns of a tile's rows; columns a multiple of the width. Calls to(row, column, sums) for
// each vector of sums of products.
template <typename Number, typename Finish>
inline void tiles(const TileProducts<Number> &p, unsigned columns, const Finish &to) {
  unsigned column = 0;
  for (; column + 4 * width <= columns; column += 4 * width)
    tile<4>(p, column, to);
  if (column + 2 * width <= columns) {
    tile<2>(p, column, to);
    column += 2 * width;
  }
  if (column < columns)
    tile<1>(p, column, to);
}
