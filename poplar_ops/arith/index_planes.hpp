// SPDX-License-Identifier: Apache-2.0
//
// A key index in planes of bits (contract E12), as an IPU keeps it. A group is 32 positions: `indexBits` words
// of codes of a record (key_index.hpp), or a word of each plane. Bit indexBits * i + w of a word of a plane is that
// of code i of word w: then both are made of each other by shifts and masks, for all codes of a word at a time.
//
// One text for codelets and for the host.
#pragma once

#include "key_index.hpp"

namespace sparq {

// Positions of a word of a plane.
constexpr unsigned groupPositions = 32;
constexpr unsigned blockGroups = blockSize / groupPositions;

// The lowest bit of every code of a word.
constexpr unsigned everyCode(unsigned indexBits) {
  return indexBits == 4 ? 0x11111111u : 0x01010101u;
}

// What the first `depth` planes have of every code of a word.
constexpr unsigned readMask(unsigned depth, unsigned indexBits) {
  return everyCode(indexBits) * (((1u << depth) - 1) << (indexBits - depth));
}

// By how much a code may be above what was read of it.
constexpr unsigned unreadCode(unsigned depth, unsigned indexBits) {
  return (1u << (indexBits - depth)) - 1;
}

// The word of plane t, from the words of codes of a group.
inline unsigned planeWord(const unsigned *codes, unsigned t, unsigned indexBits) {
  const unsigned shift = indexBits - 1 - t, every = everyCode(indexBits);
  unsigned word = 0;
  for (unsigned w = 0; w != indexBits; ++w)
    word |= ((codes[w] >> shift) & every) << w;
  return word;
}

// The words of codes of a group, from the first `depth` planes, whose words are `stride` apart; 0 in place of what
// was not read.
template <unsigned indexBits>
inline void codesOfPlanes(const unsigned *planes, unsigned stride, unsigned depth,
                          unsigned *codes) {
  unsigned sum[indexBits] = {};
  unsigned shift = indexBits - 1;
  for (unsigned t = 0; t != depth; ++t, --shift, planes += stride)
    for (unsigned w = 0; w != indexBits; ++w)
      sum[w] |= ((*planes >> w) & everyCode(indexBits)) << shift;
  for (unsigned w = 0; w != indexBits; ++w)
    codes[w] = sum[w];
}

// For four planes in half as many operations: pairs of bits first, then pairs of these.
template <>
inline void codesOfPlanes<4>(const unsigned *planes, unsigned stride, unsigned depth,
                             unsigned *codes) {
  constexpr unsigned even = 0x55555555u, odd = ~even, low = 0x33333333u, high = ~low;
  struct Pairs {
    unsigned ofEven = 0, ofOdd = 0; // of words 0 and 2, of words 1 and 3
    Pairs(const unsigned *at, unsigned apart, unsigned n) {
      if (n == 0)
        return;
      ofEven = (*at & even) << 1;
      ofOdd = *at & odd;
      if (n == 1)
        return;
      ofEven |= at[apart] & even;
      ofOdd |= (at[apart] & odd) >> 1;
    }
  };
  const Pairs above(planes, stride, depth < 2 ? depth : 2);
  unsigned word[4] = {(above.ofEven & low) << 2, (above.ofOdd & low) << 2, above.ofEven & high,
                      above.ofOdd & high};
  if (depth > 2) {
    const Pairs below(planes + 2 * stride, stride, depth - 2);
    word[0] |= below.ofEven & low;
    word[1] |= below.ofOdd & low;
    word[2] |= (below.ofEven & high) >> 2;
    word[3] |= (below.ofOdd & high) >> 2;
  }
  for (unsigned w = 0; w != 4; ++w)
    codes[w] = word[w];
}

} // namespace sparq
