// SPDX-License-Identifier: Apache-2.0
//
// Rows of keys and values in 8 bits (contract E10): rounded as they are appended, decoded as they
// arrive from streaming memory.
#include "arith/row_codes.hpp"
#include "halves.hpp"

namespace sparq {

using WholeWordsOut = poplar::Output<poplar::Vector<half, poplar::VectorLayout::ONE_PTR, 4>>;

// Four codes, without their offset, as fp16 numbers times 1 / 1024 above 1024: two neighbours at a
// mask.
static inline Quad decodeFour(unsigned word, float scale) {
  constexpr unsigned bytes = 0x00FF00FFu, of1024 = 0x64006400u;
  const unsigned words[2] = {(word & bytes) | of1024, ((word >> 8) & bytes) | of1024};
  alignas(8) half numbers[quadSize];
  __builtin_memcpy(numbers, words, sizeof(numbers));
  return (load<Quad>(numbers) - (1024.0f + rowCodeOffset)) * scale;
}

// The scale of a group.
static inline float loadScale(const half *scales, unsigned group) {
  const unsigned word = loadWord(scales + (group & ~1u));
  return bitcast<float>(group % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
}

// Eight components from a multiple of 8 on, as four words of fp16 numbers.
struct Octet {
  unsigned words[4];
  Octet(const half *codes, const half *scales, unsigned first) {
    const float scale = loadScale(scales, first / rowGroup);
    alignas(8) half numbers[nLanes];
    for (unsigned i = 0; i != nLanes; i += quadSize)
      store(numbers + i, decodeFour(loadWord(codes + (first + i) / 2), scale));
    __builtin_memcpy(words, numbers, sizeof(words));
  }
};

// Rounds rows, and writes their codes and scales. A worker takes groups two at a time, because two
// scales share a word.
struct RoundRows : poplar::MultiVertex {
  HalvesIn numbers;     // [n][width]
  HalvesOut rounded;    // [n][width]
  HalvesOut codes;      // [n][width / 2]
  WholeWordsOut scales; // [n][nRowScales(width)]
  unsigned n, width;    // width is a multiple of 8

  void compute(unsigned worker) {
    constexpr unsigned two = 2 * rowGroup;
    const unsigned room = nRowScales(width) * rowGroup; // of a row, whole twos
    unsigned first = worker * two;
    for (unsigned row = 0; row != n; ++row, first -= room) // turns go on from row to row
      for (; first < width; first += numWorkers() * two) {
        const unsigned at = row * width + first;
        const unsigned low = roundGroup(at, minimum(rowGroup, width - first));
        const unsigned high =
            first + rowGroup < width
                ? roundGroup(at + rowGroup, minimum(rowGroup, width - first - rowGroup))
                : 0;
        storeWord(&scales[row * nRowScales(width) + first / rowGroup], low >> 16 | high);
      }
  }

private:
  // The bits of the scale.
  unsigned roundGroup(unsigned at, unsigned nComponents) {
    Lanes most{};
    for (unsigned c = 0; c != nComponents; c += nLanes)
      most = larger(most, withoutSign(loadLanes(&numbers[at + c])));
    float largest = most[0];
    for (unsigned i = 1; i != nLanes; ++i)
      largest = larger(largest, most[i]);
    const float scale = rowScale(largest), inverse = 1.0f / scale;
    for (unsigned c = 0; c != nComponents; c += quadSize) {
      const Quad code = rowCode(load<Quad>(&numbers[at + c]), inverse);
      store(&rounded[at + c], code * scale);
      const QuadBits bits = bitcast<QuadBits>(code + (integerShift + rowCodeOffset));
      unsigned word = 0;
      for (unsigned i = 0; i != quadSize; ++i)
        word |= (bits[i] & 0xFFu) << codeShift(i);
      storeWord(&codes[(at + c) / 2], word);
    }
    return bitcast<unsigned>(scale);
  }
};

// Rows of keys and values as they arrive, to pieces like those of CutRows.
struct CutCodes : poplar::MultiVertex {
  HalvesIn rows;              // [n][codedRow(headDim)]
  HalvesOut pieces;           // [4][n][headDim / 4] of keys, then [slices][n][width] of values
  unsigned n, headDim, width; // width is a multiple of 4

  void compute(unsigned worker) {
    const unsigned perPair = headDim / 4, nScales = nRowScales(headDim);
    unsigned first = worker * nLanes;
    for (unsigned row = 0; row != n; ++row, first -= headDim) {
      const half *codes = &rows[row * codedRow(headDim)], *scales = codes + headDim;
      for (; first < headDim; first += numWorkers() * nLanes) {
        const Octet key(codes, scales, first);
        half *to = &pieces[row * perPair + first / 4];
        for (unsigned pair = 0; pair != nLanes / 2; ++pair, to += n * perPair)
          storeWord(to, key.words[pair]);
      }
    }
    for (unsigned c = worker * width; c < headDim; c += numWorkers() * width)
      for (unsigned row = 0; row != n; ++row) {
        const half *codes = &rows[row * codedRow(headDim) + headDim / 2],
                   *scales = codes + headDim / 2 + nScales;
        half *to = &pieces[n * (headDim + c) + row * width];
        for (unsigned i = 0; i != width; i += quadSize)
          store(to + i,
                decodeFour(loadWord(codes + (c + i) / 2), loadScale(scales, (c + i) / rowGroup)));
      }
  }
};

// The keys of a block's rows to columns. A worker has whole components, and so whole words.
struct CodeColumns : poplar::MultiVertex {
  HalvesIn rows;     // [64][codedRow(headDim)]
  HalvesOut columns; // [nComponents][64]: the first ones
  unsigned headDim, nComponents;

  void compute(unsigned worker) {
    for (unsigned c = worker * nLanes; c < nComponents; c += numWorkers() * nLanes)
      for (unsigned i = 0; i != blockSize; i += 2) {
        const Octet even = octet(i, c), odd = octet(i + 1, c);
        half *to = &columns[c * blockSize + i];
        for (unsigned pair = 0; pair != nLanes / 2; ++pair, to += 2 * blockSize) {
          const unsigned a = even.words[pair], b = odd.words[pair];
          storeWord(to, (a & 0xFFFFu) | b << 16);
          storeWord(to + blockSize, a >> 16 | (b & 0xFFFF0000u));
        }
      }
  }

private:
  Octet octet(unsigned position, unsigned first) const {
    const half *codes = &rows[position * codedRow(headDim)];
    return Octet(codes, codes + headDim, first);
  }
};

} // namespace sparq
