// SPDX-License-Identifier: Apache-2.0
//
// Dot products of rows of numbers with weights of 4 bits, as a linear layer has them
// (../int4_product.hpp). Integers of a row have two bytes, for there are instructions that multiply
// bytes.
#pragma once

#include "kernels/vectors.hpp"
#if defined(SPARQ_AVX512) || defined(SPARQ_AVX2)
#include "kernels/dot_codes_x86.hpp"
#else
#include "kernels/codes_portable.hpp"
#endif

// Exponents as fp32 has them: the least one that counts as the largest number's, and that of
// infinity. A step is 2^13 below.
constexpr unsigned leastExponent = 30, noExponent = 255, stepsBelow = 13;

inline void roundGroups(const RoundGroups &a) {
  for (std::size_t group = 0; group < a.groups; ++group) {
    const std::uint16_t *const numbers = a.row + group * weightGroup;
    RoundedGroup &to = a.to[group * a.stride];
    std::uint16_t most = leastExponent << 7;
    for (unsigned i = 0; i < weightGroup; ++i) {
      const std::uint16_t magnitude = numbers[i] & 0x7fff;
      most = magnitude > most ? magnitude : most;
    }
    const unsigned exponent = most >> 7;
    const bool isFinite = exponent != noExponent;
    const int kept = isFinite ? -1 : 0; // of bits
    const float inverse = bitcast<float>((254 + stepsBelow - exponent) << 23);
    int sum = 0;
    for (unsigned i = 0; i < weightGroup; ++i) {
      const float number = bitcast<float>(static_cast<unsigned>(numbers[i]) << 16);
      const int integer = roundToInteger(number * inverse) & kept;
      const int high = (integer + 128) >> 8;
      to.high[i] = static_cast<signed char>(high);
      to.low[i] = static_cast<signed char>(integer - 256 * high);
      sum += integer;
    }
    to.start = -8 * sum;
    to.sum = static_cast<float>(sum);
    to.step = bitcast<float>(isFinite ? (exponent - stepsBelow) << 23 : 0x7fc00000u);
  }
}

// To nearest, ties to even, as ../bfloat16.hpp.
inline void storeBfloat16(std::uint16_t *to, Vec x) {
  using Numbers = std::uint16_t __attribute__((vector_size(2 * width)));
  const BitsVec bits = bitcast<BitsVec>(x);
  const Numbers numbers =
      __builtin_convertvector((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16, Numbers);
  __builtin_memcpy(to, &numbers, sizeof(numbers));
}

// The weights of as many outputs as a vector has.
struct WeightsOfGroup {
  static constexpr unsigned lines = 4, apart = groupBytes / 5; // of codes
  Codes lower[lines], upper[lines];
  Vec scale, zero;
  WeightsOfGroup(const unsigned char *from, unsigned part) {
    for (unsigned i = 0; i < lines; ++i) {
      const Codes codes = loadCodes(from + i * apart + part * codeBytes);
      lower[i] = lowerCodes(codes);
      upper[i] = upperCodes(codes);
    }
    BitsVec pairs;
    __builtin_memcpy(&pairs, from + lines * apart + part * sizeof(pairs), sizeof(pairs));
    scale = bitcast<Vec>(pairs << 16);
    zero = bitcast<Vec>(pairs & 0xffff0000u);
  }
  Vec product(const RoundedGroup &x) const {
    Codes high{}, low{};
    for (unsigned i = 0; i < lines; ++i) {
      high = addQuads(high, lower[i], broadcastWord(x.high + 4 * i));
      low = addQuads(low, lower[i], broadcastWord(x.low + 4 * i));
    }
    for (unsigned i = 0; i < lines; ++i) {
      high = addQuads(high, upper[i], broadcastWord(x.high + weightGroup / 2 + 4 * i));
      low = addQuads(low, upper[i], broadcastWord(x.low + weightGroup / 2 + 4 * i));
    }
    const Vec sum = sumOfBoth(high, low, x.start);
    return (scale * sum + zero * broadcast(x.sum)) * broadcast(x.step);
  }
};

// Of `fixed` rows, or of any number where that is 0.
template <unsigned fixed> inline void groupProductsOf(const GroupProducts &a) {
  constexpr unsigned parts = 64 / codeBytes; // vectors of 16 outputs
  const std::size_t nRows = fixed ? fixed : a.nRows;
  const unsigned char *weights = a.weights;
  for (std::size_t block = 0; block < a.blocks; ++block) {
    Vec sum[fixed ? fixed : mostGroupRows][parts];
    for (std::size_t r = 0; r < nRows; ++r)
      for (unsigned part = 0; part < parts; ++part)
        sum[r][part] = Vec{};
    const RoundedGroup *rows = a.rows;
    for (std::size_t group = 0; group < a.groups; ++group, rows += nRows, weights += groupBytes) {
      for (unsigned line = 0; line < groupBytes; line += 64)
        fetchLine<2>(reinterpret_cast<std::uintptr_t>(weights + line) + a.ahead);
      for (unsigned part = 0; part < parts; ++part) {
        const WeightsOfGroup of(weights, part);
        for (std::size_t r = 0; r < nRows; ++r)
          sum[r][part] = sum[r][part] + of.product(rows[r]);
      }
    }
    for (std::size_t r = 0; r < nRows; ++r)
      for (unsigned part = 0; part < parts; ++part)
        storeBfloat16(a.output + r * a.stride + block * 16 + part * width, sum[r][part]);
  }
}

inline void groupProducts(const GroupProducts &a) {
  if (a.nRows == 1)
    groupProductsOf<1>(a);
  else
    groupProductsOf<0>(a);
}
