// SPDX-License-Identifier: Apache-2.0
//
// Scores of full blocks from a key index of 8, 4 or 2 bits (contract E9), wherever its records are.
//   score[p] = (unit * (sum over j of coefficient[j] * code[j, p]) + offset) * inv_tau
// The sum is of integers, exact in any order. Codes of 4 or 2 bits are multiplied two at a time:
// with one in each half of a word, a product with a coefficient is that of both.
#pragma once

#include "arith/key_index.hpp"
#include "lanes.hpp"

namespace sparq {

using IntsIn = poplar::Input<poplar::Vector<int, ONE_PTR, 8>>;
using IntsOut = poplar::Output<poplar::Vector<int, ONE_PTR, 8>>;

// Where the scores of a block are made: a piece is four positions of codes of 8 bits, whole words;
// of fewer bits eight, of 2 bits from half of each half of a word.
struct Pieces {
  unsigned perBlock, quads; // pieces; in each, fours of positions
  unsigned apart;           // from a piece's first four positions to its others
  unsigned halved;          // 1 where a piece is half a word, else 0

  explicit Pieces(unsigned indexBits)
      : perBlock(indexBits == 8 ? 16 : 8), quads(indexBits == 8 ? 1 : 2),
        apart(indexBits == 2 ? 8 : quadSize), halved(indexBits == 2 ? 1 : 0) {}
  // For a piece of a block: its word, the shift of its codes within the word, and its first
  // position.
  unsigned word(unsigned piece) const { return piece >> halved; }
  unsigned shift(unsigned piece) const { return (piece & halved) * 8; }
  unsigned position(unsigned piece) const {
    return halved ? word(piece) * 16 + (piece & 1) * quadSize : piece * quads * quadSize;
  }
};

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

// Sums over the components for eight positions of codes of 4 or 2 bits, whose words are shifted
// already: four of the lower half of a word and four of the upper. Two sums share a word, the lower
// one with its sign: after `together` components at most they are taken apart.
template <unsigned bits, class Word>
static inline void sumOfPairs(const Word &word, const int *coefficients, unsigned rank,
                              int *total) {
  constexpr unsigned together = bits == 4 ? 16 : 64; // 16 * 15 * 127 and 64 * 3 * 127 < 2^15
  constexpr unsigned low = largestCode(bits) * 0x00010001u;
  for (unsigned k = 0; k != 8; ++k)
    total[k] = 0;
  for (unsigned begin = 0; begin < rank; begin += together) {
    unsigned sum[4] = {};
    const unsigned end = begin + together < rank ? begin + together : rank;
    for (unsigned j = begin; j != end; ++j) {
      const unsigned codes = word(j), a = static_cast<unsigned>(coefficients[j]);
      for (unsigned k = 0; k != 4; ++k)
        sum[k] += ((codes >> (bits * k)) & low) * a;
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

// Scores of every step-th piece of the blocks [0, nBlocks); column(j): the records of
// component j; scores of head h at scores + h * headStride.
template <class Column>
static inline void scoreBlocks(const Column &column, const Coefficients &c, unsigned nBlocks,
                               float *scores, unsigned headStride, unsigned first, unsigned step) {
  const Pieces pieces(c.indexBits);
  unsigned block = 0, inBlock = first;
  for (unsigned item = first; item < nBlocks * pieces.perBlock; item += step, inBlock += step) {
    for (; inBlock >= pieces.perBlock; inBlock -= pieces.perBlock)
      ++block;
    const unsigned at = block * recordWords(c.indexBits) + pieces.word(inBlock),
                   shift = pieces.shift(inBlock),
                   position = block * blockSize + pieces.position(inBlock);
    const auto word = [&](unsigned j) { return column(j)[at]; };
    const auto shifted = [&](unsigned j) { return column(j)[at] >> shift; };
    for (unsigned h = 0; h != c.groupSize; ++h) {
      const unsigned row = block * c.groupSize + h;
      const int *coefficients = c.coefficients + row * c.rank;
      int total[8];
      if (c.indexBits == 4)
        sumOfPairs<4>(word, coefficients, c.rank, total);
      else if (c.indexBits == 2)
        sumOfPairs<2>(shifted, coefficients, c.rank, total);
      else
        sumOfEight(word, coefficients, c.rank, total);
      for (unsigned quad = 0; quad != pieces.quads; ++quad) {
        Quad sum;
        for (unsigned i = 0; i != quadSize; ++i)
          sum[i] = static_cast<float>(total[quad * quadSize + i]);
        store(&scores[h * headStride + position + quad * pieces.apart],
              (c.units[row] * sum + c.offsets[row]) * c.inverseTemperature[h]);
      }
    }
  }
}

} // namespace sparq
