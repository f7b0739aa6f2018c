// SPDX-License-Identifier: Apache-2.0
//
// Scores of full blocks from codes of 4 or 2 bits for several query heads at once (contract E9). A code is taken
// out of its word once for all of them, and multiplied in fp16, four positions at a time. With 8 taken away a code
// of 4 bits is in [-8, 7] and a product with a coefficient of at most 127 in [-1016, 1016], so that fp16 holds the
// sum of two of them exactly; of 2 bits 2 are taken away. What was taken away is added again at the end: so many
// times the sum of the coefficients.
#pragma once

#include "halves.hpp"
#include "index_scores.hpp"

namespace sparq {

// Four numbers in fp16. Elsewhere in fp32, which gives the same as long as fp16 is exact.
#ifdef __IPU__
typedef half FourHalves __attribute__((vector_size(8)));
inline FourHalves loadFour(const half *from) {
  FourHalves four;
  __builtin_memcpy(&four, aligned<sizeof(four)>(from), sizeof(four));
  return four;
}
inline void storeFour(half *to, const FourHalves &four) {
  __builtin_memcpy(aligned<sizeof(four)>(to), &four, sizeof(four));
}
inline FourHalves fourOfBits(const Pair &bits) { return bitcast<FourHalves>(bits); }
inline FourHalves everyHalf(float x) { return FourHalves{} + static_cast<half>(x); }
inline Quad widened(const FourHalves &four) { return __builtin_convertvector(four, Quad); }
#else
typedef Quad FourHalves;
inline FourHalves loadFour(const half *from) { return load<Quad>(from); }
inline void storeFour(half *to, const FourHalves &four) { store(to, four); }
inline FourHalves fourOfBits(const Pair &bits) {
  alignas(sizeof(Pair)) half halves[quadSize];
  __builtin_memcpy(static_cast<void *>(halves), &bits, sizeof(bits));
  return load<Quad>(halves);
}
inline FourHalves everyHalf(float x) { return FourHalves{} + x; }
inline Quad widened(const FourHalves &four) { return four; }
#endif

// What is taken away from a code.
constexpr unsigned middleCode(unsigned indexBits) { return 1u << (indexBits - 1); }

// Eight codes of a word, those of a piece (see Pieces), each less the middle: of 4 bits of positions 0, 4, 2, 6,
// then of 1, 5, 3, 7; of 2 bits, of the word shifted to the piece, of positions 0, 8, 2, 10, then of 1, 9, 3, 11.
// Codes become low bits of fp16 numbers of [1024, 2048), whose bits count ones or parts of what they are.
constexpr unsigned codesOfPiece = 8;
template <unsigned indexBits> inline void expandCodes(unsigned word, half *to) {
  constexpr unsigned exponents = 0x64006400u; // of 1024
  constexpr unsigned mask = largestCode(indexBits) * 0x00010001u, middle = middleCode(indexBits);
  constexpr float scale = 1u << indexBits;
  storeWord(to, word | exponents);
  storeWord(to + 2, word >> 2 * indexBits | exponents);
  Pair bits; // not through integer registers
  __builtin_memcpy(&bits, aligned<sizeof(bits)>(to), sizeof(bits));
  const Pair lower = Pair{} + bitcast<float>(exponents | mask),
             upper = Pair{} + bitcast<float>(exponents | mask << indexBits);
  storeFour(to, fourOfBits(keepBits(bits, lower)) - everyHalf(1024 + middle));
  storeFour(to + quadSize, (fourOfBits(keepBits(bits, upper)) - everyHalf(1024 + middle * scale)) *
                               everyHalf(1 / scale));
}

// Two sums of four positions over the components: codes of a component are codesOfPiece from those before, the
// four copies of a coefficient follow one another.
struct TwoSums {
  Quad first{}, second{};

  TwoSums(const half *codes, const half *otherCodes, const half *coefficients,
          const half *otherCoefficients, unsigned rank) {
    const auto next = [&](unsigned n) {
      codes += n * codesOfPiece;
      otherCodes += n * codesOfPiece;
      coefficients += n * quadSize;
      otherCoefficients += n * quadSize;
    };
    for (unsigned n = rank / 4; n != 0; --n) // four to a pass
      for (unsigned i = 0; i != 2; ++i, next(2)) {
        first += widened(ofTwo(codes, coefficients));
        second += widened(ofTwo(otherCodes, otherCoefficients));
      }
    for (unsigned n = rank % 4; n != 0; --n, next(1)) {
      first += widened(product(codes, coefficients));
      second += widened(product(otherCodes, otherCoefficients));
    }
  }

private:
  static FourHalves product(const half *codes, const half *coefficients) {
    return loadFour(codes) * loadFour(coefficients);
  }
  static FourHalves ofTwo(const half *codes, const half *coefficients) {
    return product(codes, coefficients) + product(codes + codesOfPiece, coefficients + quadSize);
  }
};

// As blockCoefficients of nHeads heads, whose parameters are looked up and widened once: four copies of each
// coefficient, and as a bias so many times their sum as was taken away from a code.
template <unsigned nHeads, class Parameters>
static inline void fourfoldCoefficients(const Parameters &parameters, const float *query,
                                        unsigned rank, float limit, float middle,
                                        half *coefficients, float *units, float *offsets,
                                        float *biases) {
  float largest[nHeads] = {}, sums[nHeads] = {}, all[nHeads] = {}, inverse[nHeads];
  const auto place = [&](unsigned h, unsigned j) {
    return coefficients + (h * rank + j) * quadSize;
  };
  for (unsigned j = 0; j != rank; ++j) {
    const Pair ofBlock = load<Pair>(reinterpret_cast<const half *>(parameters(j)));
    for (unsigned h = 0; h != nHeads; ++h) {
      const Pair products = query[h * rank + j] * ofBlock;
      const float ofStep = products[0];
      __builtin_memcpy(aligned<sizeof(float)>(static_cast<void *>(place(h, j))), &ofStep,
                       sizeof(ofStep));
      largest[h] = larger(withoutSign(ofStep), largest[h]);
      sums[h] += products[1];
    }
  }
  for (unsigned h = 0; h != nHeads; ++h)
    inverse[h] = largest[h] == 0.0f ? 0.0f : limit / largest[h];
  for (unsigned j = 0; j != rank; ++j)
    for (unsigned h = 0; h != nHeads; ++h) {
      half *const to = place(h, j);
      float ofStep;
      __builtin_memcpy(&ofStep, aligned<sizeof(float)>(static_cast<const void *>(to)),
                       sizeof(ofStep));
      const float rounded = (ofStep * inverse[h] + integerShift) - integerShift;
      all[h] += rounded;
      store(to, Pair{rounded, rounded});
      store(to + pairSize, Pair{rounded, rounded});
    }
  for (unsigned h = 0; h != nHeads; ++h) {
    units[h] = largest[h] * (1.0f / limit);
    offsets[h] = sums[h];
    biases[h] = middle * all[h];
  }
}

} // namespace sparq
