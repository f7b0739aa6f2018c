// SPDX-License-Identifier: Apache-2.0
//
// Which positions a part holds, and where.
//
// One KV head of one batch element (a slot) is worked on by several tiles (its parts). Positions
// arrive in waves of `stride`; of each wave, part p holds the `length` positions from p * length
// on. The positions since the last full chunk of key columns (the tail) form a last segment of
// `tailLength` a part, on the parts from `tailFirst` on: others than those of the waves where there
// are enough, so that both work at once. A part keeps its segments one after the other: wave 0,
// wave 1, ..., tail. Ordered by (segment, part), segments ascend by position:
//
//   3 parts, stride 256, length 128, chunk 256, tailLength 128, tailFirst 1,
//   650 positions filled (512 flushed):
//
//              wave 0     wave 1     tail
//     part 0   [0,128)    [256,384)  -
//     part 1   [128,256)  [384,512)  [512,640)
//     part 2   -          -          [640,650)
//
// Dense attention has no tail: chunk = 1, tailLength = 0.
#pragma once

#include "lanes.hpp"

namespace sparq {

struct Segments {
  unsigned part, stride, length, nWaves, tailLength, tailFirst;
  unsigned filled;  // positions in the cache
  unsigned flushed; // of these, positions in full chunks

  // chunk must be a power of two.
  Segments(unsigned part, unsigned stride, unsigned length, unsigned nWaves, unsigned tailLength,
           unsigned tailFirst, unsigned chunk, unsigned filled)
      : part(part), stride(stride), length(length), nWaves(nWaves), tailLength(tailLength),
        tailFirst(tailFirst), filled(filled), flushed(filled & ~(chunk - 1)) {}

  unsigned count() const { return nWaves + (tailLength != 0); }
  bool isTail(unsigned segment) const { return segment == nWaves; }
  // First position of the segment in `ofPart`.
  unsigned begin(unsigned segment, unsigned ofPart) const {
    if (!isTail(segment))
      return segment * stride + ofPart * length;
    return ofPart < tailFirst ? filled : flushed + (ofPart - tailFirst) * tailLength;
  }
  unsigned begin(unsigned segment) const { return begin(segment, part); }
  // Index of the segment's first position in the part's own arrays.
  unsigned local(unsigned segment) const { return segment * length; }
  // Room of the segment in the part's own arrays.
  unsigned room(unsigned segment) const { return isTail(segment) ? tailLength : length; }
  // How many of the segment's positions hold data and lie below `limit`.
  unsigned valid(unsigned segment, unsigned limit) const {
    const unsigned first = begin(segment);
    const unsigned end = isTail(segment)
                             ? minimum(first + tailLength, filled)
                             : minimum(minimum(first + length, (segment + 1) * stride), flushed);
    const unsigned stop = minimum(end, limit);
    return stop > first ? stop - first : 0;
  }
};

} // namespace sparq
