// SPDX-License-Identifier: Apache-2.0
//
// Rows of keys and values in 8 bits (contract E10): how they are kept, and the arithmetic that
// makes them. Groups of 16 consecutive components share a scale, a bfloat16 number.
//
// A row of streaming memory, in halves: codes of the key, codes of the value, scales of the key,
// scales of the value. A code is kept with 128 added. Of four codes the word has, from the low end,
// the first, the third, the second, the fourth: so that a mask gives two neighbours as numbers of
// 16 bits.
//
// One text for codelets and for the host, which has no type for fp16: both give and take float.
#pragma once

#include "arith.hpp"
#include "key_index.hpp"

namespace sparq {

// Components that share a scale.
constexpr unsigned rowGroup = 16;
constexpr float codeLimit = 127.0f;
constexpr unsigned rowCodeOffset = 128;

// Scales of a key, an even number so that they are whole words; and halves of a row.
constexpr unsigned nRowScales(unsigned headDim) {
  return (headDim + 2 * rowGroup - 1) / (2 * rowGroup) * 2;
}
constexpr unsigned codedRow(unsigned headDim) { return headDim + 2 * nRowScales(headDim); }

// The scale of a group whose largest magnitude is `most`: to 8 significant bits, nearest, ties to
// even. In a range where code * scale is far from the smallest fp16 numbers and never above the
// largest.
inline float rowScale(float most) {
  const unsigned bits = bitcast<unsigned>(most * (1.0f / codeLimit));
  const float scale = bitcast<float>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
  return smaller(larger(scale, 0x1p-20f), 0x1p9f);
}

// The code of x, an integer in [-127, 127]. V is float or a vector of it.
template <class V> inline V rowCode(const V &x, float inverse) {
  const V code = (x * inverse + integerShift) - integerShift;
  return smaller(larger(code, V{} - codeLimit), V{} + codeLimit);
}

// Where of a word the code of component i is, 0 to 3: in bits.
constexpr unsigned codeShift(unsigned i) { return (i & 1) * 16 + (i & 2) * 4; }

} // namespace sparq
