// SPDX-License-Identifier: Apache-2.0
//
// A few vectors that are computed with side by side. One exponential is a chain of some 20
// dependent operations, and a processor looks ahead over too few to overlap enough of them by
// itself; written out in turns, they fill the time.

template <class V> struct Several {
  V part[severalVectors];
};

using SeveralVecs = Several<Vec>;
using SeveralBits = Several<BitsVec>;

#define SPARQ_SEVERAL(op)                                                                          \
  template <class V> inline Several<V> operator op(const Several<V> &a, const Several<V> &b) {     \
    Several<V> y;                                                                                  \
    for (unsigned i = 0; i < severalVectors; ++i)                                                  \
      y.part[i] = a.part[i] op b.part[i];                                                          \
    return y;                                                                                      \
  }                                                                                                \
  template <class V, class Number> inline Several<V> operator op(const Several<V> &a, Number b) {  \
    Several<V> y;                                                                                  \
    for (unsigned i = 0; i < severalVectors; ++i)                                                  \
      y.part[i] = a.part[i] op b;                                                                  \
    return y;                                                                                      \
  }
SPARQ_SEVERAL(+)
SPARQ_SEVERAL(-)
SPARQ_SEVERAL(*)
SPARQ_SEVERAL(<<)
#undef SPARQ_SEVERAL

template <class V> inline Several<V> operator+(float a, const Several<V> &b) { return b + a; }

// Comparisons, as masks of integers.
inline Several<IntVec> operator<(const SeveralVecs &a, float b) {
  Several<IntVec> y;
  for (unsigned i = 0; i < severalVectors; ++i)
    y.part[i] = a.part[i] < b;
  return y;
}
inline Several<IntVec> operator>(const SeveralVecs &a, float b) {
  Several<IntVec> y;
  for (unsigned i = 0; i < severalVectors; ++i)
    y.part[i] = a.part[i] > b;
  return y;
}
inline SeveralVecs select(const Several<IntVec> &condition, const SeveralVecs &a,
                          const SeveralVecs &b) {
  SeveralVecs y;
  for (unsigned i = 0; i < severalVectors; ++i)
    y.part[i] = condition.part[i] ? a.part[i] : b.part[i];
  return y;
}
