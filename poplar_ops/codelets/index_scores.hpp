// SPDX-License-Identifier: Apache-2.0
//
// Scores of full blocks from a key index of 8 or 4 bits (contract E9), wherever its records are.
//   score[p] = (unit * (sum over j of coefficient[j] * code[j, p]) + offset) * inv_tau
// The sum is of integers, exact in any order. Codes of 4 bits are multiplied two at a time: with
// one in each half of a word, a product with a coefficient is that of both.
#pragma once

#include "arith/key_index.hpp"
#include "lanes.hpp"

namespace sparq {

using IntsIn = poplar::Input<poplar::Vector<int, ONE_PTR, 8>>;
using IntsOut = poplar::Output<poplar::Vector<int, ONE_PTR, 8>>;

// Positions of one word of codes, at most.
static constexpr unsigned maxPerWord = 8;

// The coefficients of one query head for one block. parameters(j): the last word of the record of
// component j, its step and its lowest value. A step and a value of the query multiply exactly.
template <class Parameters>
static inline void blockCoefficients(const Parameters &parameters, const float *query,
                                     unsigned rank, float limit, int *coefficients, float &unit,
                                     float &offset) {
  float largest = 0.0f, sum = 0.0f;
  for (unsigned j = 0; j != rank; ++j) {
    // As halves they never see an integer register.
    const Pair products = query[j] * load<Pair>(reinterpret_cast<const half *>(parameters(j)));
    coefficients[j] = bitcast<int>(products[0]);
    largest = larger(withoutSign(products[0]), largest);
    sum += products[1];
  }
  const float inverse = largest == 0.0f ? 0.0f : limit / largest;
  for (unsigned j = 0; j != rank; ++j)
    coefficients[j] = roundToInteger(bitcast<float>(coefficients[j]) * inverse);
  unit = largest * (1.0f / limit);
  offset = sum;
}

// The same for all heads of the blocks [0, nBlocks), shared out over the workers. column(j): the
// records of component j; results [nBlocks][groupSize][rank] and [nBlocks][groupSize].
template <class Column>
static inline void
coefficientsOfBlocks(const Column &column, const float *query, unsigned groupSize, unsigned rank,
                     unsigned indexBits, unsigned nBlocks, float limit, int *coefficients,
                     float *units, float *offsets, unsigned first, unsigned step) {
  const unsigned record = recordWords(indexBits);
  unsigned h = first;
  for (unsigned block = 0; block != nBlocks; ++block, h -= groupSize) {
    const unsigned last = block * record + record - 1;
    const auto parameters = [&](unsigned j) { return column(j) + last; };
    for (; h < groupSize; h += step) {
      const unsigned row = block * groupSize + h;
      blockCoefficients(parameters, query + h * rank, rank, limit, coefficients + row * rank,
                        units[row], offsets[row]);
    }
  }
}

// Sums over the components for the eight positions of one word of codes of 4 bits. Two sums share a
// word, the lower one with its sign: after `together` components at most they are taken apart.
template <class Word>
static inline void sumOfFour(const Word &word, const int *coefficients, unsigned rank, int *total) {
  constexpr unsigned together = 16; // 16 * 15 * 127 < 2^15
  constexpr unsigned low = 0x000F000Fu;
  for (unsigned k = 0; k != maxPerWord; ++k)
    total[k] = 0;
  for (unsigned begin = 0; begin < rank; begin += together) {
    unsigned sum[4] = {};
    const unsigned end = begin + together < rank ? begin + together : rank;
    for (unsigned j = begin; j != end; ++j) {
      const unsigned codes = word(j), a = static_cast<unsigned>(coefficients[j]);
      for (unsigned k = 0; k != 4; ++k)
        sum[k] += ((codes >> (4 * k)) & low) * a;
    }
    for (unsigned k = 0; k != 4; ++k) {
      const int lower = static_cast<short>(sum[k] & 0xFFFFu);
      total[k] += lower;
      total[k + 4] += static_cast<int>(sum[k] - static_cast<unsigned>(lower)) >> 16;
    }
  }
}

// The same for the four positions of one word of codes of 8 bits. Unsigned, so that coefficients
// made of NaN wrap around and do no harm.
template <class Word>
static inline void sumOfEight(const Word &word, const int *coefficients, unsigned rank,
                              int *total) {
  unsigned sum[4] = {};
  for (unsigned j = 0; j != rank; ++j) {
    const unsigned codes = word(j), a = static_cast<unsigned>(coefficients[j]);
    for (unsigned k = 0; k != 4; ++k)
      sum[k] += ((codes >> (8 * k)) & 0xFFu) * a;
  }
  for (unsigned k = 0; k != 4; ++k)
    total[k] = static_cast<int>(sum[k]);
}

// What blocks of a part need beside their codes.
struct Coefficients {
  const int *coefficients;         // [nBlocks][groupSize][rank]
  const float *units, *offsets;    // [nBlocks][groupSize]
  const float *inverseTemperature; // [groupSize]
  unsigned groupSize, rank, indexBits;
};

// Scores of every step-th word of codes of the blocks [0, nBlocks); column(j): the records of
// component j; scores of head h at scores + h * headStride.
template <class Column>
static inline void scoreBlocks(const Column &column, const Coefficients &c, unsigned nBlocks,
                               float *scores, unsigned headStride, unsigned first, unsigned step) {
  const unsigned words = codeWords(c.indexBits), perWord = c.indexBits == 4 ? 8 : 4;
  unsigned block = 0, inBlock = first;
  for (unsigned item = first; item < nBlocks * words; item += step, inBlock += step) {
    for (; inBlock >= words; inBlock -= words)
      ++block;
    const unsigned at = block * recordWords(c.indexBits) + inBlock;
    const auto word = [&](unsigned j) { return column(j)[at]; };
    for (unsigned h = 0; h != c.groupSize; ++h) {
      const unsigned row = block * c.groupSize + h;
      const int *coefficients = c.coefficients + row * c.rank;
      int total[maxPerWord];
      if (c.indexBits == 4)
        sumOfFour(word, coefficients, c.rank, total);
      else
        sumOfEight(word, coefficients, c.rank, total);
      for (unsigned k = 0; k != perWord; k += quadSize) {
        Quad sum;
        for (unsigned i = 0; i != quadSize; ++i)
          sum[i] = static_cast<float>(total[k + i]);
        store(&scores[h * headStride + item * perWord + k],
              (c.units[row] * sum + c.offsets[row]) * c.inverseTemperature[h]);
      }
    }
  }
}

} // namespace sparq
