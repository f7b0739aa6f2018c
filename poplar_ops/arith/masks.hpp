// SPDX-License-Identifier: Apache-2.0
//
// Choices between numbers, and the work on their bits. On an IPU written with the builtins of its
// compiler, which makes branches of a `?:` of floats, and sends vectors through integer registers
// for an AND. The results are the same to the bit, except for NaN, which the contract leaves open,
// and for the sign of a zero maximum, which no result depends on.
#pragma once

#ifdef __IPU__
#include <ipu_builtins.h>
#endif

namespace sparq {

// The integer type of the same shape as V, for work on bit patterns.
template <class V> struct BitsOf;
template <> struct BitsOf<float> {
  using type = unsigned;
};

template <class To, class From> inline To bitcast(const From &from) {
  static_assert(sizeof(To) == sizeof(From), "bitcast: sizes differ");
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

// condition ? a : b, by lanes. A function, so that types other than V can have one.
template <class Condition, class V>
inline V select(const Condition &condition, const V &a, const V &b) {
  return condition ? a : b;
}

#ifdef __IPU__

// f(a, b) of every two lanes, or of one.
template <class F> inline float byPairs(const float &a, const float &b, const F &f) {
  return f(a, b);
}
template <class V, class F> inline V byPairs(const V &a, const V &b, const F &f) {
  typedef float Two __attribute__((vector_size(8)));
  constexpr unsigned n = sizeof(V) / sizeof(Two);
  struct Parts {
    Two two[n];
  };
  Parts x = bitcast<Parts>(a);
  const Parts y = bitcast<Parts>(b);
  for (unsigned i = 0; i != n; ++i)
    x.two[i] = f(x.two[i], y.two[i]);
  return bitcast<V>(x);
}

// A popc may compile C++11, which has no generic lambdas.
#define SPARQ_BY_PAIRS(NAME, BUILTIN)                                                              \
  struct NAME##OfTwo {                                                                             \
    template <class T> T operator()(T a, T b) const { return BUILTIN(a, b); }                      \
  };                                                                                               \
  template <class V> inline V NAME(const V &a, const V &b) { return byPairs(a, b, NAME##OfTwo()); }
SPARQ_BY_PAIRS(larger, __builtin_ipu_max)
SPARQ_BY_PAIRS(smaller, __builtin_ipu_min)
SPARQ_BY_PAIRS(keepBits, __builtin_ipu_and)
SPARQ_BY_PAIRS(maskFrom, __builtin_ipu_cmpge)
SPARQ_BY_PAIRS(maskUpTo, __builtin_ipu_cmple)
SPARQ_BY_PAIRS(maskAbove, __builtin_ipu_cmpgt)
#undef SPARQ_BY_PAIRS

template <class V> inline V zeroBelow(const V &x, float limit, const V &y) {
  return keepBits(y, maskFrom(x, V{} + limit));
}
template <class V> inline V zeroAbove(const V &x, float limit, const V &y) {
  return keepBits(y, maskUpTo(x, V{} + limit));
}
template <class V> inline V zeroUpTo(const V &x, float limit, const V &y) {
  return keepBits(y, maskAbove(x, V{} + limit));
}
// The power by itself goes through the integer registers, not y as well.
template <class V> inline V timesPowerOfTwo(const V &y, const V &t) {
  using Bits = typename BitsOf<V>::type;
  return y * bitcast<V>((bitcast<Bits>(t) << 23) + 0x3F800000u);
}

#else

// The larger, the smaller of two numbers.
template <class V> inline V larger(const V &a, const V &b) { return select(a > b, a, b); }
template <class V> inline V smaller(const V &a, const V &b) { return select(a < b, a, b); }
// x, of whose bits only those are kept that are set in `bits`.
template <class V> inline V keepBits(const V &x, const V &bits) {
  using Bits = typename BitsOf<V>::type;
  return bitcast<V>(bitcast<Bits>(x) & bitcast<Bits>(bits));
}
// y, or 0 where x lies below, above, not above the limit.
template <class V> inline V zeroBelow(const V &x, float limit, const V &y) {
  return select(x < limit, V{}, y);
}
template <class V> inline V zeroAbove(const V &x, float limit, const V &y) {
  return select(x > limit, V{}, y);
}
template <class V> inline V zeroUpTo(const V &x, float limit, const V &y) {
  return select(x > limit, y, V{});
}
// y * 2^n, for t = n + 1.5 * 2^23 and a normal result.
template <class V> inline V timesPowerOfTwo(const V &y, const V &t) {
  using Bits = typename BitsOf<V>::type;
  return bitcast<V>(bitcast<Bits>(y) + ((bitcast<Bits>(t) - 0x4B400000u) << 23));
}

#endif

} // namespace sparq
