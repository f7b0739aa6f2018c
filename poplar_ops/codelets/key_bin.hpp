// SPDX-License-Identifier: Apache-2.0
//
// What the vertices of the selection share: where the topK-th key is known to lie, and marks of
// positions.
#pragma once

#include "arith/selection.hpp"
#include "segments.hpp"

namespace sparq {

// Stands for the doubtful keys of a block that has more than two, and of every block where the
// topK-th key lies outside the window. Keys are below 2.
static constexpr float clash = 0x1p30f;

// The bin of patterns in which the topK-th key lies, as far as it is settled. Each worker keeps its
// own from one compute set to the next.
struct Selection {
  enum Pass : unsigned {
    none,   // nothing is counted yet
    window, // keys were counted by the digits of the window
    digits, // keys of the bin were counted by its digits
    lost    // the topK-th key lies outside of the window
  };
  unsigned begin;     // the least pattern of the bin, or of what was counted by digits
  unsigned shift;     // the bin, or a digit, has 2^shift patterns
  unsigned remaining; // keys still wanted of it
  unsigned pass;

  static constexpr unsigned size = 4;
  static Selection restored(const unsigned *state) {
    return {state[0], state[1], state[2], state[3]};
  }
  void keep(unsigned *state) const {
    state[0] = begin;
    state[1] = shift;
    state[2] = remaining;
    state[3] = pass;
  }

  // Whether the bin is a single pattern: its keys are equal.
  bool isExact() const { return pass == digits && shift == 0; }

  // On to the next pass, which counts by digits of the bin; or to the first one of all bits.
  void next(const float *totals, unsigned nWanted, unsigned firstShift) {
    if (pass == none) {
      begin = 0;
      shift = firstShift;
      remaining = nWanted;
      pass = digits;
      return;
    }
    const bool ofWindow = pass == window;
    const unsigned from = begin;
    settle(totals);
    const unsigned digit = (begin - from) >> shift;
    pass = ofWindow && (digit == 0 || digit == nDigits - 1) ? lost : digits;
    shift -= digitBits;
  }

  // Settle the digit that the totals of the last pass decide, [nDigits]. From the top, first a
  // quarter of the digits at a time, then a quarter of these, then one. Returns how many keys the
  // bin has.
  unsigned settle(const float *totals) {
    float wanted = static_cast<float>(remaining);
    unsigned end = nDigits;
    skip<nDigits / 4>(totals, wanted, end);
    skip<nDigits / 16>(totals, wanted, end);
    skip<1>(totals, wanted, end);
    remaining = static_cast<unsigned>(wanted);
    begin += (end - 1) << shift;
    return static_cast<unsigned>(totals[end - 1]);
  }

private:
  template <unsigned size> static void skip(const float *totals, float &wanted, unsigned &end) {
    for (unsigned i = 0; i != 3; ++i) {
      const float n = sum<size>(totals + end - size);
      if (n >= wanted)
        break;
      wanted -= n;
      end -= size;
    }
  }
  template <unsigned size> static float sum(const float *const totals) {
    if (size == 1) {
      return *totals;
    } else {
      Quad four{};
      for (unsigned i = 0; i < size; i += quadSize)
        four += load<Quad>(totals + i);
      return (four[0] + four[1]) + (four[2] + four[3]);
    }
  }
};

// Whether any of eight keys is as large as a pattern; most often none is. Wide keys, integers of 31
// bits, may look like NaN and are compared one by one.
class KeyFilter {
public:
  // No key is as large as infinity, which is the limit where nothing is searched: comparing with
  // NaN may be a floating-point exception.
  KeyFilter(unsigned begin, bool wideIn)
      : least(bitcast<float>(minimum(begin, 0x7f800000u))), wide(wideIn) {}
  bool mayHave(const float *keys) const {
    if (wide)
      return true;
    return !(largestOf(larger(load<Quad>(keys), load<Quad>(keys + quadSize))) < least);
  }

private:
  float least;
  bool wide;
};

// Positions that compete: all but the last nLocal.
static inline unsigned candidates(unsigned filled, unsigned nLocal) {
  return filled > nLocal ? filled - nLocal : 0;
}

static constexpr unsigned piecesOfBlock = blockSize / pieceSize;

// The index of the lowest one of a word that is not 0.
static inline unsigned lowestOne(unsigned bits) { return 31 - __builtin_clz(bits & (0u - bits)); }

} // namespace sparq
