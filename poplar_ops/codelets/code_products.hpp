// SPDX-License-Identifier: Apache-2.0
//
// Scores of full blocks from codes of 4 or 2 bits, for several query heads at once (contract E9). A
// code is extracted once for all heads. One instruction then multiplies the codes of two positions
// by coefficients of two heads, and adds the four products to four sums. All are integers below
// 2^24, so fp32 holds them exactly, in any order.
#pragma once

#include "halves.hpp"
#include "index_scores.hpp"

namespace sparq {

// Four numbers in fp16. Elsewhere in fp32, which gives the same as long as fp16 is exact.
#ifdef __IPU__
typedef half FourHalves __attribute__((vector_size(8)));
inline FourHalves fourOfBits(const Pair &bits) { return bitcast<FourHalves>(bits); }
inline FourHalves everyHalf(float x) { return FourHalves{} + static_cast<half>(x); }
inline Quad widened(const FourHalves &four) { return __builtin_convertvector(four, Quad); }
#else
typedef Quad FourHalves;
inline FourHalves fourOfBits(const Pair &bits) {
  alignas(sizeof(Pair)) half halves[quadSize];
  __builtin_memcpy(static_cast<void *>(halves), &bits, sizeof(bits));
  return load<Quad>(halves);
}
inline FourHalves everyHalf(float x) { return FourHalves{} + x; }
inline Quad widened(const FourHalves &four) { return four; }
#endif

inline void storeWord(float *to, unsigned word) {
  __builtin_memcpy(aligned<sizeof(word)>(to), &word, sizeof(word));
}

// Expands the eight codes of a piece (see Pieces) of each of n words to codesOfPiece numbers a
// word. With 4 bits: the codes of positions 0, 4, 2, 6, then those of 1, 5, 3, 7 times 16. With 2
// bits, from words that are shifted to the piece: those of 0, 8, 2, 10, then those of 1, 9, 3, 11
// times 4. A code becomes the low bits of an fp16 number in [1024, 2048), whose last bit is worth
// 1.
constexpr unsigned codesOfPiece = 8;
constexpr float timesOdd(unsigned indexBits) { return 1.0f / (1u << indexBits); }
template <unsigned indexBits, unsigned n>
inline void expandCodes(const unsigned (&words)[n], float *to) {
  constexpr unsigned exponents = 0x64006400u; // of 1024
  constexpr unsigned mask = largestCode(indexBits) * 0x00010001u;
  const Pair even = Pair{} + bitcast<float>(exponents | mask),
             odd = Pair{} + bitcast<float>(exponents | mask << indexBits);
  for (unsigned i = 0; i != n; ++i) { // not through integer registers
    storeWord(to + i * codesOfPiece, words[i] | exponents);
    storeWord(to + i * codesOfPiece + 1, words[i] >> 2 * indexBits | exponents);
  }
  Pair bits[n];
  for (unsigned i = 0; i != n; ++i)
    bits[i] = load<Pair>(to + i * codesOfPiece);
  for (unsigned i = 0; i != n; ++i) {
    float *const own = to + i * codesOfPiece;
    store(own, widened(fourOfBits(keepBits(bits[i], even)) - everyHalf(1024)));
    store(own + quadSize, widened(fourOfBits(keepBits(bits[i], odd)) - everyHalf(1024)));
  }
}

// Sums of the four products of two numbers and two others.
#ifdef __IPU__
class OuterSums { // in the accumulators, which what is read leaves empty
public:
  OuterSums() {
    for (unsigned i = 0; i != 4; ++i)
      next();
  }
  void add(const Pair &x, const Pair &y) { __builtin_ipu_f32v2aop(x, y, 0); }
  // Those of y[0], then those of y[1].
  Pair next() { return __builtin_ipu_f32v2gina(Pair{}, 0); }
};
#else
class OuterSums {
public:
  void add(const Pair &x, const Pair &y) {
    first += x * y[0];
    second += x * y[1];
  }
  Pair next() {
    const Pair sum = first;
    first = second;
    second = Pair{};
    return sum;
  }

private:
  Pair first{}, second{};
};
#endif

// Adds the products over the components: codes of a component are codesOfPiece from those before,
// coefficients of two heads follow one another.
inline void addProducts(OuterSums &sums, const float *codes, const float *coefficients,
                        unsigned rank) {
  const auto add = [&](unsigned n) {
    for (unsigned i = 0; i != n; ++i)
      sums.add(load<Pair>(codes + i * codesOfPiece), load<Pair>(coefficients + i * pairSize));
    codes += n * codesOfPiece;
    coefficients += n * pairSize;
  };
  for (unsigned n = rank / 4; n != 0; --n) // four to a pass
    add(4);
  for (unsigned n = rank % 4; n != 0; --n)
    add(1);
}

// Scores from a piece of each component, word(j), for all heads: finish(h, p, sums) of the
// positions p and those apart from it. coefficients: [(groupSize + 1) / 2][rank][2]; codes: room
// for [rank][8].
template <unsigned indexBits, class Word, class Finish>
inline void scorePiece(const Word &word, const float *coefficients, unsigned rank,
                       unsigned groupSize, float *codes, OuterSums &sums, const Finish &finish) {
  unsigned j = 0;
  for (; j + 2 <= rank; j += 2) // two to a pass
    expandCodes<indexBits, 2>({word(j), word(j + 1)}, codes + j * codesOfPiece);
  if (j != rank)
    expandCodes<indexBits, 1>({word(j)}, codes + j * codesOfPiece);
  for (unsigned h = 0; h < groupSize; h += 2, coefficients += rank * pairSize)
    for (unsigned two = 0; two != codesOfPiece; two += pairSize) {
      addProducts(sums, codes + two, coefficients, rank);
      // Of 4 bits positions 0 and 4, 2 and 6, then 1 and 5, 3 and 7.
      const unsigned p = two % quadSize + two / quadSize;
      const float scale = two < quadSize ? 1.0f : timesOdd(indexBits);
      finish(h, p, sums.next() * scale);
      const Pair other = sums.next() * scale;
      if (h + 1 != groupSize)
        finish(h + 1, p, other);
    }
}
// Makes scores of sums.
struct ScoresOfSums {
  const float *units, *offsets, *inverseTemperature; // of the heads
  float *to;                                         // of the piece, of the first head
  unsigned headStride, apart;
  void operator()(unsigned h, unsigned p, const Pair &sum) const {
    const Pair score = (units[h] * sum + offsets[h]) * inverseTemperature[h];
    float *const at = to + h * headStride + p;
    at[0] = score[0];
    at[apart] = score[1];
  }
};

// blockCoefficients for two heads side by side; their parameters are looked up and widened once:
// [rank][2].
template <class Parameters>
static inline void coefficientsOfTwo(const Parameters &parameters, const float *query,
                                     const float *other, unsigned rank, float limit,
                                     float *coefficients, Pair &unit, Pair &offset) {
  Pair largest{}, sum{};
  float *to = coefficients;
  const auto add = [&](const Pair &ofBlock, const Pair &q) {
    const Pair ofStep = q * ofBlock[0];
    store(to, ofStep);
    to += pairSize;
    largest = larger(withoutSign(ofStep), largest);
    sum += q * ofBlock[1];
  };
  const auto ofBlock = [&](unsigned j) {
    return load<Pair>(reinterpret_cast<const half *>(parameters(j)));
  };
  unsigned j = 0;
  for (; j + 2 <= rank; j += 2) { // two to a pass
    const Pair first = ofBlock(j), second = ofBlock(j + 1);
    const Pair ofFirst{query[j], other[j]}, ofSecond{query[j + 1], other[j + 1]};
    add(first, ofFirst);
    add(second, ofSecond);
  }
  if (j != rank)
    add(ofBlock(j), Pair{query[j], other[j]});
  Pair inverse;
  for (unsigned h = 0; h != pairSize; ++h)
    inverse[h] = largest[h] == 0.0f ? 0.0f : limit / largest[h];
  to = coefficients;
  const auto round = [&] {
    store(to, (load<Pair>(to) * inverse + integerShift) - integerShift);
    to += pairSize;
  };
  for (unsigned n = rank / 2; n != 0; --n) // two to a pass
    round(), round();
  if (rank % 2 != 0)
    round();
  unit = largest * (1.0f / limit);
  offset = sum;
}

} // namespace sparq
