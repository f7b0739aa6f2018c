// SPDX-License-Identifier: Apache-2.0
//
// SparQ, selection of positions (contract E6.3): the last nLocal positions and the best of the
// others by group-summed weight, equal keys by lower index.
//
// Keys are non-negative floats, so their bit patterns order them. The parts of a slot search for
// the bin of patterns that holds the topK-th key. In each pass every part counts its candidates by
// 64 digits, the counts are added up over the parts, and the next pass divides the bin of the digit
// that holds the topK-th key. There are two ways.
//
// Usually: keys add up to the group size, so the topK-th is at most group size / topK, and seldom
// much smaller. The first pass counts in a window below that bound, four (or two) digits to a power
// of two; the second divides a digit by 64. Keys above the bin are selected. The bin holds few keys
// beside the topK-th, the *doubtful* ones: at most two in each block of 64 positions. All parts get
// these, and each counts how many come before its own (key_marks.cpp).
//
// Where the topK-th key of a slot lies outside the window, or a block has three doubtful keys (a
// *clash*), all slots begin again. Five passes of six bits settle the whole pattern. Doubtful keys
// are equal then, and those at the lowest positions are taken. Integer keys always go this way.
//
//   keys 9 7 7 7 3, two wanted: the threshold is 7, one key lies above it, so one of the three
//   sevens is taken: the first.
//
// Counts are floats: exact (a capacity is at most 2^24), and two are added in one instruction.
#include "key_bin.hpp"

namespace sparq {

// How many keys have each digit, of one of the workers: [64][6] of all, so that a digit's of a part
// are one piece.
class DigitCounts {
public:
  DigitCounts(float *ofAll, unsigned worker) : count(ofAll + worker) {
    for (unsigned digit = 0; digit != nDigits; digit += 8)
      for (unsigned i = 0; i != 8; ++i)
        count[(digit + i) * nOfAll] = 0.0f;
  }
  void add(unsigned digit) { count[digit * nOfAll] += 1.0f; }

private:
  static constexpr unsigned nOfAll = 6;
  float *count;
};

// key[p] = sum over the group of weight[h, p] / Z[h], ascending by head; scaled. And the first
// pass: this part's candidates counted by the digits of the window. Keys below count as its first
// digit, those above as its last.
struct GroupKeys : poplar::MultiVertex {
  poplar::Input<unsigned> filled;
  FloatsIn weights;   // [groupSize][partPositions]
  FloatsIn sums;      // [groupSize], Z
  FloatsOut keys;     // [partPositions], those of candidates
  WordsOut states;    // [6][4], a Selection for each worker
  FloatsInOut counts; // [64][6]
  unsigned groupSize, partPositions, topK, nLocal, windowBegin, windowShift;
  unsigned part, stride, length, nWaves, tailLength, tailFirst, chunk;

  void compute(unsigned worker) {
    const unsigned windowFirst = windowBegin, shift = windowShift;
    Selection{windowFirst, shift, topK - nLocal, Selection::window}.keep(
        &states[worker * Selection::size]);
    const Quad low = Quad{} + bitcast<float>(windowFirst),
               high = Quad{} + bitcast<float>(windowFirst + (nDigits << shift) - 1);
    DigitCounts count(&counts[0], worker);
    const Segments segments(part, stride, length, nWaves, tailLength, tailFirst, chunk, *filled);
    const unsigned limit = candidates(*filled, nLocal);
    for (unsigned s = 0; s != segments.count(); ++s) {
      const unsigned first = segments.local(s), n = segments.valid(s, limit);
      for (unsigned p = worker * quadSize; p < n; p += numWorkers() * quadSize) {
        Quad key{};
        for (unsigned h = 0; h != groupSize; ++h)
          key += load<Quad>(&weights[h * partPositions + first + p]) / sums[h];
        key *= keyScale;
        store(&keys[first + p], key);
        const QuadBits digit = (bitcast<QuadBits>(smaller(larger(key, low), high)) - windowFirst) >>
                               shift; // within the counts for NaN too
        if (p + quadSize <= n)
          for (unsigned i = 0; i != quadSize; ++i)
            count.add(digit[i]);
        else
          for (unsigned i = 0; i != n - p; ++i)
            count.add(digit[i]);
      }
    }
  }
};

// A later pass: settle the last pass's digit, count this part's candidates by the digits of its
// bin. Or the first pass of all bits.
struct KeyHistogram : poplar::MultiVertex {
  poplar::Input<unsigned> filled;
  FloatsIn keys;      // [partPositions]
  FloatsIn totals;    // [64], of the last pass
  WordsInOut states;  // [6][4], a Selection for each worker
  FloatsInOut counts; // [64][6]
  unsigned topK, nLocal;
  unsigned firstShift; // of the first pass of all bits
  bool wide;           // see KeyFilter
  unsigned part, stride, length, nWaves, tailLength, tailFirst, chunk;

  void compute(unsigned worker) {
    unsigned *const state = &states[worker * Selection::size];
    Selection selection = Selection::restored(state);
    selection.next(&totals[0], topK - nLocal, firstShift);
    selection.keep(state);

    DigitCounts count(&counts[0], worker);
    if (selection.pass == Selection::lost)
      return;
    const unsigned begin = selection.begin, shift = selection.shift;
    const KeyFilter filter(begin, wide);
    const Segments segments(part, stride, length, nWaves, tailLength, tailFirst, chunk, *filled);
    const unsigned limit = candidates(*filled, nLocal);
    for (unsigned s = 0; s != segments.count(); ++s) {
      const float *key = &keys[segments.local(s)];
      const unsigned n = segments.valid(s, limit);
      const auto add = [&](unsigned p) {
        const unsigned digit = (bitcast<unsigned>(key[p]) - begin) >> shift;
        if (digit < nDigits)
          count.add(digit);
      };
      unsigned p = worker * nLanes;
      for (; p + nLanes <= n; p += numWorkers() * nLanes)
        if (filter.mayHave(key + p))
          for (unsigned i = 0; i != nLanes; ++i)
            add(p + i);
      for (; p < n; ++p)
        add(p);
    }
  }
};

// Sums of what SumRows made, over all groups of parts: two digits an item.
struct SumCounts : poplar::MultiVertex {
  FloatsIn counts;  // [nItems][nRows][2][6]
  FloatsOut totals; // [nItems][2]
  unsigned nItems, nRows;

  void compute(unsigned worker) {
    constexpr unsigned nOfDigit = 6;
    for (unsigned item = worker; item < nItems; item += numWorkers()) {
      Pair first{}, second{};
      const float *count = &counts[item * nRows * 2 * nOfDigit];
      for (unsigned row = 0; row != nRows; ++row, count += 2 * nOfDigit)
        for (unsigned i = 0; i != nOfDigit; i += pairSize) {
          first += load<Pair>(count + i);
          second += load<Pair>(count + nOfDigit + i);
        }
      totals[item * 2] = first[0] + first[1];
      totals[item * 2 + 1] = second[0] + second[1];
    }
  }
};

// Sums of the counts of a group of parts, two digits an item: by each worker of `each` of the rows.
struct SumRows : poplar::MultiVertex {
  FloatsIn counts; // [nItems][nRows][2][6]
  FloatsOut sums;  // [nItems][2][6]
  unsigned nItems, nRows, each;

  void compute(unsigned worker) {
    constexpr unsigned nOfDigit = 6, ofRow = 2 * nOfDigit;
    // Copies, for a sum that is stored could be any of these.
    const unsigned n = nItems, rows = nRows, begin = minimum(worker * each, rows),
                   own = minimum(begin + each, rows) - begin;
    const float *ofItem = &counts[begin * ofRow];
    float *to = &sums[worker];
    for (unsigned item = 0; item != n; ++item, ofItem += rows * ofRow, to += ofRow) {
      Pair first{}, second{};
      const float *count = ofItem;
      for (unsigned row = 0; row != own; ++row, count += ofRow)
        for (unsigned i = 0; i != nOfDigit; i += pairSize) {
          first += load<Pair>(count + i);
          second += load<Pair>(count + nOfDigit + i);
        }
      to[0] = first[0] + first[1];
      to[nOfDigit] = second[0] + second[1];
    }
  }
};

// After the last pass: which of this part's positions are selected for sure, and which are
// doubtful. The last nLocal are selected, and so are all positions where there are no more than
// topK.
struct MarkKeys : poplar::MultiVertex {
  poplar::Input<unsigned> filled;
  FloatsIn keys;     // [partPositions]
  FloatsIn totals;   // [64], of the last pass
  WordsInOut states; // [6][4]
  WordsOut marks;    // [partPositions / 32], one bit a position: selected
  WordsOut doubts;   // [partPositions / 32], one bit a position: doubtful
  // A block's doubtful keys, or 0, or clash; after the passes of all bits how many it has, and 0.
  FloatsOut doubtful; // [partPositions / 64][2]
  unsigned topK, nLocal;
  bool wide; // see KeyFilter
  unsigned part, stride, length, nWaves, tailLength, tailFirst, chunk;

  void compute(unsigned worker) {
    unsigned *const state = &states[worker * Selection::size];
    Selection selection = Selection::restored(state);
    const unsigned nWanted = topK - nLocal;
    const bool anyCompete = *filled > topK && nWanted != 0;
    Bin bin{~0u, 0, true};
    if (anyCompete && selection.pass == Selection::lost)
      bin.found = false;
    else if (anyCompete) {
      const unsigned inBin = selection.settle(&totals[0]);
      bin.begin = selection.begin;
      // Where all of the bin are wanted, none is doubtful.
      bin.width = selection.remaining == inBin ? 0 : 1u << selection.shift;
    }
    selection.keep(state);
    const KeyFilter filter(bin.begin, wide);
    const bool exact = selection.isExact();
    const Segments segments(part, stride, length, nWaves, tailLength, tailFirst, chunk, *filled);
    const unsigned limit = *filled <= topK ? 0 : candidates(*filled, nLocal);
    unsigned block = worker;
    for (unsigned s = 0; s != segments.count(); ++s) {
      const unsigned begin = segments.local(s), end = begin + segments.room(s);
      const unsigned n = segments.valid(s, *filled), nCandidates = segments.valid(s, limit);
      for (; block * blockSize < end; block += numWorkers()) {
        const unsigned first = block * blockSize - begin;
        Doubtful found;
        for (unsigned side = 0; side != piecesOfBlock; ++side) {
          const unsigned at = first + side * pieceSize;
          mark(block * piecesOfBlock + side, n > at ? minimum(n - at, pieceSize) : 0,
               nCandidates > at ? minimum(nCandidates - at, pieceSize) : 0, bin, filter, found);
        }
        doubtful[block * 2] = exact                       ? static_cast<float>(found.n)
                              : !bin.found || found.n > 2 ? clash
                                                          : bitcast<float>(found.last);
        doubtful[block * 2 + 1] = exact || found.n < 2 ? 0.0f : bitcast<float>(found.before);
      }
    }
  }

private:
  struct Bin {
    unsigned begin, width;
    bool found;
  };
  struct Doubtful {
    unsigned n = 0, last = 0, before = 0;
  };
  // The first n positions of a piece hold data, of these the first nCandidates compete.
  void mark(unsigned piece, unsigned n, unsigned nCandidates, const Bin &bin,
            const KeyFilter &filter, Doubtful &found) {
    const float *const key = &keys[piece * pieceSize];
    unsigned above = 0, doubt = 0;
    const auto look = [&](unsigned p) {
      const unsigned bits = bitcast<unsigned>(key[p]);
      if (bits < bin.begin)
        return;
      if (bits - bin.begin >= bin.width) {
        above |= 1u << p;
      } else {
        doubt |= 1u << p;
        found.before = found.last;
        found.last = bits;
        ++found.n;
      }
    };
    unsigned p = 0;
    for (; p + nLanes <= nCandidates; p += nLanes)
      if (filter.mayHave(key + p)) // seldom
        for (unsigned i = 0; i != nLanes; ++i)
          look(p + i);
    for (; p != nCandidates; ++p)
      look(p);
    for (; p < n; ++p)
      above |= 1u << p;
    marks[piece] = above;
    doubts[piece] = doubt;
  }
};

} // namespace sparq
