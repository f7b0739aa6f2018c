// SPDX-License-Identifier: Apache-2.0
#pragma once

// Vector types of the IPU's compiler for codelets on the host: float2, half4 and their like.
// They are classes, since no host has vectors of `half`. So they work with every host compiler:
// [i], .x .y .z .w, braces, arithmetic by element (each operation rounds to the element's type, as
// a device's does), a scalar on either side, comparisons that give -1 for true. A cast of a scalar
// to a vector does not compile.

#include <stddef.h>
#include <stdint.h>

#include <type_traits>

#include <poplar/HalfFloat.hpp>

// Codelets reach rows of elements through pointers to vectors: these types may alias.
#define SPARQ_VECTOR(NAME, TRUTH, T, N, ...)                                                       \
  struct alignas(sizeof(T) * N) NAME {                                                             \
    typedef T vector_element;                                                                      \
    typedef TRUTH vector_truth;                                                                    \
    enum { vector_size = N };                                                                      \
    T &operator[](unsigned i) { return reinterpret_cast<T *>(this)[i]; }                           \
    const T &operator[](unsigned i) const { return reinterpret_cast<const T *>(this)[i]; }         \
    T __VA_ARGS__;                                                                                 \
  } __attribute__((may_alias));
#define SPARQ_VECTORS(NAME, TRUTH, T)                                                              \
  SPARQ_VECTOR(NAME##2, struct TRUTH##2, T, 2, x, y)                                               \
  SPARQ_VECTOR(NAME##4, struct TRUTH##4, T, 4, x, y, z, w)

struct char2;
struct char4;
struct short2;
struct short4;
struct int2;
struct int4;
struct longlong2;
struct longlong4;
SPARQ_VECTORS(char, char, signed char)
SPARQ_VECTORS(uchar, char, unsigned char)
SPARQ_VECTORS(short, short, short)
SPARQ_VECTORS(ushort, short, unsigned short)
SPARQ_VECTORS(int, int, int)
SPARQ_VECTORS(uint, int, unsigned)
SPARQ_VECTORS(longlong, longlong, long long)
SPARQ_VECTORS(ulonglong, longlong, unsigned long long)
SPARQ_VECTORS(half, short, half)
SPARQ_VECTORS(float, int, float)
typedef int2 long2; // `long` has 32 bits on a device
typedef int4 long4;
#undef SPARQ_VECTORS
#undef SPARQ_VECTOR

namespace poplar {
namespace vector_types {
// `Itself<V, typename V::vector_element>` is V, where V is a vector.
template <class V, class> struct Itself {
  typedef V type;
};
template <class V> V splat(typename V::vector_element e) {
  V r;
  for (unsigned i = 0; i < V::vector_size; ++i)
    r[i] = e;
  return r;
}
// `__builtin_convertvector`: of these vectors, and of those that a compiler has.
template <class To, class From>
typename std::enable_if<std::is_class<From>::value, To>::type converted(const From &v) {
  static_assert(int(To::vector_size) == int(From::vector_size), "as many elements");
  To r;
  for (unsigned i = 0; i < To::vector_size; ++i)
    r[i] = static_cast<typename To::vector_element>(v[i]);
  return r;
}
template <class To, class From>
typename std::enable_if<!std::is_class<From>::value, To>::type converted(const From &v) {
  return __builtin_convertvector(v, To);
}
} // namespace vector_types
} // namespace poplar

#define SPARQ_VECTOR_ITSELF                                                                        \
  typename poplar::vector_types::Itself<V, typename V::vector_element>::type
// Of two vectors, or of a vector and a scalar, which becomes a vector.
#define SPARQ_VECTOR_WITH_SCALAR(RESULT, OP)                                                       \
  template <class V> inline RESULT operator OP(const V &a, typename V::vector_element b) {         \
    return a OP poplar::vector_types::splat<V>(b);                                                 \
  }                                                                                                \
  template <class V> inline RESULT operator OP(typename V::vector_element a, const V &b) {         \
    return poplar::vector_types::splat<V>(a) OP b;                                                 \
  }
#define SPARQ_VECTOR_ARITHMETIC(OP)                                                                \
  template <class V> inline SPARQ_VECTOR_ITSELF operator OP(const V &a, const V &b) {              \
    V r;                                                                                           \
    for (unsigned i = 0; i < V::vector_size; ++i)                                                  \
      r[i] = static_cast<typename V::vector_element>(a[i] OP b[i]);                                \
    return r;                                                                                      \
  }                                                                                                \
  SPARQ_VECTOR_WITH_SCALAR(V, OP)                                                                  \
  template <class V> inline SPARQ_VECTOR_ITSELF &operator OP##=(V &a, const V &b) {                \
    return a = a OP b;                                                                             \
  }                                                                                                \
  template <class V> inline V &operator OP##=(V &a, typename V::vector_element b) {                \
    return a = a OP b;                                                                             \
  }
#define SPARQ_VECTOR_COMPARISON(OP)                                                                \
  template <class V> inline typename V::vector_truth operator OP(const V &a, const V &b) {         \
    typename V::vector_truth r;                                                                    \
    for (unsigned i = 0; i < V::vector_size; ++i)                                                  \
      r[i] = a[i] OP b[i] ? -1 : 0;                                                                \
    return r;                                                                                      \
  }                                                                                                \
  SPARQ_VECTOR_WITH_SCALAR(typename V::vector_truth, OP)
#define SPARQ_VECTOR_UNARY(OP)                                                                     \
  template <class V> inline SPARQ_VECTOR_ITSELF operator OP(const V &a) {                          \
    V r;                                                                                           \
    for (unsigned i = 0; i < V::vector_size; ++i)                                                  \
      r[i] = static_cast<typename V::vector_element>(OP a[i]);                                     \
    return r;                                                                                      \
  }
SPARQ_VECTOR_UNARY(-)
SPARQ_VECTOR_UNARY(~)
SPARQ_VECTOR_ARITHMETIC(+)
SPARQ_VECTOR_ARITHMETIC(-)
SPARQ_VECTOR_ARITHMETIC(*)
SPARQ_VECTOR_ARITHMETIC(/)
SPARQ_VECTOR_ARITHMETIC(%)
SPARQ_VECTOR_ARITHMETIC(&)
SPARQ_VECTOR_ARITHMETIC(|)
SPARQ_VECTOR_ARITHMETIC(^)
SPARQ_VECTOR_ARITHMETIC(<<)
SPARQ_VECTOR_ARITHMETIC(>>)
SPARQ_VECTOR_COMPARISON(==)
SPARQ_VECTOR_COMPARISON(!=)
SPARQ_VECTOR_COMPARISON(<)
SPARQ_VECTOR_COMPARISON(<=)
SPARQ_VECTOR_COMPARISON(>)
SPARQ_VECTOR_COMPARISON(>=)
#undef SPARQ_VECTOR_ITSELF
#undef SPARQ_VECTOR_WITH_SCALAR
#undef SPARQ_VECTOR_ARITHMETIC
#undef SPARQ_VECTOR_COMPARISON
#undef SPARQ_VECTOR_UNARY

#define __builtin_convertvector(v, ...) (::poplar::vector_types::converted<__VA_ARGS__>(v))

/// What a hardware loop can count.
typedef unsigned rptsize_t;
