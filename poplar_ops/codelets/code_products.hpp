// SPDX-License-Identifier: Apache-2.0
//
// Scores of full blocks from codes of 4 bits for several query heads at once (contract E9). A code is taken out
// of its word once for all of them, and multiplied in fp16, four positions at a time. With 8 taken away a code is
// in [-8, 7] and a product with a coefficient of at most 127 in [-1016, 1016], so that fp16 holds the sum of two
// of them exactly. What was taken away is added again at the end: 8 times the sum of the coefficients.
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

// Eight codes of 4 bits of a word, each less 8: those of positions 0, 4, 2, 6, then of 1, 5, 3, 7. Codes become
// low bits of fp16 numbers of [1024, 2048), whose bits count ones or sixteenths of what they are.
constexpr unsigned codesOfWord = 8;
inline void expandCodes(unsigned word, half *to) {
  constexpr unsigned exponents = 0x64006400u; // of 1024
  storeWord(to, word | exponents);
  storeWord(to + 2, word >> 8 | exponents);
  Pair bits; // not through integer registers
  __builtin_memcpy(&bits, aligned<sizeof(bits)>(to), sizeof(bits));
  const Pair ones = Pair{} + bitcast<float>(exponents | 0x000F000Fu),
             sixteens = Pair{} + bitcast<float>(exponents | 0x00F000F0u);
  storeFour(to, fourOfBits(keepBits(bits, ones)) - everyHalf(1024 + 8));
  storeFour(to + quadSize,
            (fourOfBits(keepBits(bits, sixteens)) - everyHalf(1024 + 8 * 16)) * everyHalf(0.0625f));
}

// Two sums of four positions over the components: codes of a component are codesOfWord from those before, the
// four copies of a coefficient follow one another.
struct TwoSums {
  Quad first{}, second{};

  TwoSums(const half *codes, const half *otherCodes, const half *coefficients,
          const half *otherCoefficients, unsigned rank) {
    const auto next = [&](unsigned n) {
      codes += n * codesOfWord;
      otherCodes += n * codesOfWord;
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
    return product(codes, coefficients) + product(codes + codesOfWord, coefficients + quadSize);
  }
};

// As blockCoefficients of nHeads heads, whose parameters are looked up and widened once: four copies of each
// coefficient, and as a bias 8 times their sum.
template <unsigned nHeads, class Parameters>
static inline void fourfoldCoefficients(const Parameters &parameters, const float *query,
                                        unsigned rank, float limit, half *coefficients,
                                        float *units, float *offsets, float *biases) {
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
    biases[h] = 8.0f * all[h];
  }
}

} // namespace sparq
