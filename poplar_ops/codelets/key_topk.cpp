// SPDX-License-Identifier: Apache-2.0
//
// Step 2 of SparQ, selection (contract E6.3): the last nRecent positions and the best of the others
// by group-summed weight, equal keys by lower index.
//
// The parts of a slot find the exact topK-th key together by radix selection: keys are non-negative
// floats, so their bit patterns order them. Six passes settle five bits each, from the top: count
// the candidates by digit on every part, add the counts up over the parts, pick the digit in which
// the topK-th key lies.
//
//   keys 9 7 7 7 3, two wanted: the threshold is 7, one key lies above it, so one of the three
//   sevens is taken: the first.
//
// Then every part knows the threshold and how many keys that equal it (ties) lie in front of its
// own, and marks what it selects, one bit a position. Ties, marks and counts come in pieces of 32
// positions, ordered by (segment, part, piece), of those parts that have the segment: ascending by
// position.
#include "segments.hpp"

namespace sparq {

static constexpr unsigned digitBits = 5, nDigits = 32, nPasses = 6;
static constexpr unsigned pieceSize = 32;
// A key is at most the group size, give or take a rounding. Scaled by a power of two (exactly, and
// far from denormal: a weight is above 2^-78, a sum of weights at most 2^24) it is below 2, so that
// the two highest bits of its pattern are 0 and six digits are all of it.
static constexpr float keyScale = 0x1p-16f;

// What each worker remembers from pass to pass.
struct Selection {
  unsigned prefix;    // digits of the threshold settled so far
  unsigned remaining; // keys still wanted among those that begin with the prefix
  unsigned pass;      // passes done

  // The digit of a pass sits at this bit.
  static unsigned shift(unsigned pass) { return digitBits * (nPasses - 1 - pass); }
  // Settle the digit that the totals of the last pass decide.
  void settle(const unsigned *totals) {
    unsigned digit = nDigits - 1;
    while (digit != 0 && totals[digit] < remaining)
      remaining -= totals[digit--];
    prefix |= digit << shift(pass - 1);
  }
};

// Positions that compete: all but the last nRecent.
static inline unsigned candidates(unsigned filled, unsigned nRecent) {
  return filled > nRecent ? filled - nRecent : 0;
}

// key[p] = sum over the group of weight[h, p] / Z[h], ascending by head; scaled. And a fresh
// start of the selection.
class GroupKeys : public poplar::MultiVertex {
public:
  FloatsIn weights;                       // [groupSize][nLocal]
  FloatsIn sums;                          // [groupSize], Z
  FloatsOut keys;                         // [nLocal]
  WordsOut states;                        // [6][3]: zero
  unsigned groupSize, nLocal, first, end; // positions of this part that are in use

  bool compute(unsigned worker) {
    for (unsigned i = 0; i != 3; ++i)
      states[worker * 3 + i] = 0;
    for (unsigned p = first + worker * quadSize; p < end; p += numWorkers() * quadSize) {
      Quad key{};
      for (unsigned h = 0; h != groupSize; ++h)
        key += load<Quad>(&weights[h * nLocal + p]) / sums[h];
      store(&keys[p], key * keyScale);
    }
    return true;
  }
};

// One pass: settle the last pass's digit, count this part's candidates by the next one.
class KeyHistogram : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  FloatsIn keys;     // [nLocal]
  WordsIn totals;    // [32], of the last pass; not looked at in the first
  WordsInOut states; // [6][3], a Selection for each worker; zero before the first pass
  WordsOut counts;   // [6][32]
  unsigned topK, nRecent, part, stride, length, nWaves, tailLength, tailFirst, chunk;

  bool compute(unsigned worker) {
    unsigned *state = &states[worker * 3];
    Selection selection{state[0], state[1], state[2]};
    if (selection.pass == 0)
      selection.remaining = topK - nRecent;
    else
      selection.settle(&totals[0]);
    const unsigned shift = Selection::shift(selection.pass++);
    state[0] = selection.prefix;
    state[1] = selection.remaining;
    state[2] = selection.pass;

    unsigned *count = &counts[worker * nDigits];
    for (unsigned digit = 0; digit != nDigits; ++digit)
      count[digit] = 0;
    const Segments segments(part, stride, length, nWaves, tailLength, tailFirst, chunk, *filled);
    const unsigned limit = candidates(*filled, nRecent);
    for (unsigned s = 0; s != segments.count(); ++s) {
      const float *key = &keys[segments.local(s)];
      const unsigned n = segments.valid(s, limit);
      for (unsigned p = worker; p < n; p += numWorkers()) {
        const unsigned bits = bitcast<unsigned>(key[p]);
        if (((bits ^ selection.prefix) >> shift >> digitBits) == 0)
          ++count[(bits >> shift) & (nDigits - 1)];
      }
    }
    return true;
  }
};

// Sum of `nRows` partial counts, digits shared out over the workers: over the workers of a part, or
// the parts of a slot.
class SumCounts : public poplar::MultiVertex {
public:
  WordsIn counts;  // [nRows][nDigits]
  WordsOut totals; // [nDigits]
  unsigned nRows, nDigits;

  bool compute(unsigned worker) {
    // Two digits at a time: one 64-bit load for both.
    typedef unsigned Two __attribute__((vector_size(8)));
    unsigned digit = worker * 2;
    for (; digit + 1 < nDigits; digit += numWorkers() * 2) {
      Two sum{};
      for (unsigned row = 0; row != nRows; ++row) {
        Two two;
        __builtin_memcpy(&two, &counts[row * nDigits + digit], sizeof(two));
        sum += two;
      }
      totals[digit] = sum[0];
      totals[digit + 1] = sum[1];
    }
    if (digit < nDigits) {
      unsigned sum = 0;
      for (unsigned row = 0; row != nRows; ++row)
        sum += counts[row * nDigits + digit];
      totals[digit] = sum;
    }
    return true;
  }
};

// After the last pass: the threshold, and in each piece of this part how many candidates equal it.
class CountTies : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  FloatsIn keys;      // [nLocal]
  WordsIn totals;     // [32], of the last pass
  WordsIn states;     // [6][3]
  WordsOut threshold; // [2]: bits of the topK-th key, ties to take
  WordsOut ties;      // [nLocal / 32]
  unsigned nRecent, part, stride, length, nWaves, tailLength, tailFirst, chunk;

  bool compute(unsigned worker) {
    const unsigned *state = &states[worker * 3];
    Selection selection{state[0], state[1], state[2]};
    selection.settle(&totals[0]);
    if (worker == 0) {
      threshold[0] = selection.prefix;
      threshold[1] = selection.remaining;
    }
    const Segments segments(part, stride, length, nWaves, tailLength, tailFirst, chunk, *filled);
    const unsigned limit = candidates(*filled, nRecent);
    unsigned piece = 0;
    for (unsigned s = 0; s != segments.count(); ++s) {
      const unsigned n = segments.valid(s, limit);
      for (unsigned first = 0; first != segments.room(s); first += pieceSize, ++piece) {
        if (piece % numWorkers() != worker)
          continue;
        const float *key = &keys[piece * pieceSize];
        const unsigned end = n > first ? minimum(n - first, pieceSize) : 0;
        unsigned equal = 0;
        for (unsigned p = 0; p != end; ++p)
          equal += bitcast<unsigned>(key[p]) == selection.prefix;
        ties[piece] = equal;
      }
    }
    return true;
  }
};

// One bit for each position of this part that is selected, and how many each piece has.
class SelectMask : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  FloatsIn keys;     // [nLocal]
  WordsIn threshold; // [2]
  WordsIn allTies;   // pieces of the slot
  WordsOut mask;     // [nLocal / 32]
  WordsOut counts;   // [nLocal / 32]
  unsigned topK, nRecent, nWaveParts, part, stride, length, nWaves, tailLength, tailFirst, chunk;

  bool compute(unsigned worker) {
    const Segments segments(part, stride, length, nWaves, tailLength, tailFirst, chunk, *filled);
    const unsigned limit = candidates(*filled, nRecent);
    unsigned piece = 0, seen = 0, tiesBefore = 0,
             before = 0; // `before`: pieces in front of the segment
    for (unsigned s = 0; s != segments.count(); ++s) {
      const unsigned n = segments.valid(s, *filled), nCandidates = segments.valid(s, limit);
      const unsigned nPieces = segments.room(s) / pieceSize;
      for (unsigned i = 0; i != nPieces; ++i, ++piece) {
        if (piece % numWorkers() != worker)
          continue;
        if (n != 0) { // else this part has no place in allTies
          const unsigned own = segments.isTail(s) ? part - tailFirst : part;
          for (const unsigned end = before + own * nPieces + i; seen != end; ++seen)
            tiesBefore += allTies[seen];
        }
        const unsigned first = i * pieceSize;
        mark(piece, n > first ? minimum(n - first, pieceSize) : 0,
             nCandidates > first ? nCandidates - first : 0, tiesBefore);
      }
      before += nWaveParts * nPieces;
    }
    return true;
  }

private:
  void mark(unsigned piece, unsigned n, unsigned nCandidates, unsigned tiesBefore) {
    const bool takeAll = *filled <= topK;
    unsigned bits = 0, taken = 0;
    for (unsigned p = 0; p != n; ++p) {
      const unsigned pattern = bitcast<unsigned>(keys[piece * pieceSize + p]);
      bool take = takeAll || p >= nCandidates || pattern > threshold[0];
      if (!take && pattern == threshold[0])
        take = tiesBefore++ < threshold[1];
      bits |= static_cast<unsigned>(take) << p;
      taken += take;
    }
    mask[piece] = bits;
    counts[piece] = taken;
  }
};

// The marks of all parts of a slot to the ascending list of cache rows to fetch; where there are
// fewer than topK, the first row fills up.
class ExpandMask : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  WordsIn masks;  // [nPieces], of the slot
  WordsIn counts; // [nPieces]
  WordsOut rows;  // [topK]
  unsigned topK, rowBase, nWaveParts, nPieces, stride, length, nWaves, tailLength, tailFirst, chunk;

  bool compute(unsigned worker) {
    const Segments segments(0, stride, length, nWaves, tailLength, tailFirst, chunk, *filled);
    const unsigned inWave = length / pieceSize * nWaveParts;
    const unsigned perWorker = (nPieces + numWorkers() - 1) / numWorkers();
    const unsigned first = minimum(worker * perWorker, nPieces);
    const unsigned end = minimum(first + perWorker, nPieces);
    unsigned index = 0;
    for (unsigned i = 0; i != first; ++i)
      index += counts[i];
    for (unsigned i = first; i != end; ++i) {
      if (counts[i] == 0)
        continue;
      const unsigned s = minimum(i / inWave, nWaves), inSegment = i - s * inWave;
      const unsigned perPart = segments.room(s) / pieceSize;
      const unsigned part = inSegment / perPart + (segments.isTail(s) ? tailFirst : 0);
      const unsigned row = rowBase + segments.begin(s, part) + inSegment % perPart * pieceSize;
      for (unsigned bits = masks[i], lowestBit; bits != 0; bits ^= lowestBit) {
        lowestBit = bits & (0u - bits);
        rows[index++] = row + 31 - __builtin_clz(lowestBit);
      }
    }
    if (end == nPieces && first != end) // the worker with the last piece
      while (index < topK)
        rows[index++] = rowBase;
    return true;
  }
};

} // namespace sparq
