// SPDX-License-Identifier: Apache-2.0
//
// SparQ, selection of positions (contract E6.3): the last nLocal positions and the best of the others
// by group-summed weight, equal keys by lower index.
//
// The parts of a slot find the exact topK-th key together by radix selection: keys are non-negative
// floats, so their bit patterns order them. Five passes settle six bits each, from the top: count
// the candidates by digit on every part, add the counts up over the parts, find the digit in which
// the topK-th key lies (which the next pass does first).
//
//   keys 9 7 7 7 3, two wanted: the threshold is 7, one key lies above it, so one of the three
//   sevens is taken: the first.
//
// Then every part marks its keys above the threshold and those that equal it (ties), one bit a
// position, and counts both. Marks and counts come in pieces of 32 positions, ordered by (segment,
// part, piece), of those parts that have the segment: ascending by position. Whoever walks along
// the pieces knows how many positions are selected before each: all that lie above the threshold,
// and of the ties as many as are wanted.
//
// Counts are floats: exact (a capacity is at most 2^24), and two are added in one instruction.
#include "key_topk.hpp"

namespace sparq {

// A key is at most the group size, give or take a rounding. Scaled by a power of two (exactly, and
// far from denormal: a weight is above 2^-78, a sum of weights at most 2^24) it is below 2, so that
// the two highest bits of its pattern are 0 and five digits are all of it.
static constexpr float keyScale = 0x1p-16f;

// What each worker remembers from pass to pass.
struct Selection {
  unsigned prefix;    // digits of the threshold settled so far
  unsigned remaining; // keys still wanted among those that begin with the prefix
  unsigned pass;      // passes done

  // Where a worker keeps it from one compute set to the next.
  static constexpr unsigned size = 3;
  static Selection restored(const unsigned *state) { return {state[0], state[1], state[2]}; }
  void keep(unsigned *state) const {
    state[0] = prefix;
    state[1] = remaining;
    state[2] = pass;
  }

  // The digit of a pass sits at this bit. Keys of 31 bits have a pass before pass 0.
  static unsigned shift(unsigned pass) { return digitBits * (nPasses - 1 - pass); }
  // Settle the digit that the totals of the last pass decide: [nPartials][nDigits], to be added
  // up. From the top, first a quarter of the digits at a time, then a quarter of these, then one.
  void settle(const float *totals, unsigned nPartials) {
    float wanted = static_cast<float>(remaining);
    unsigned end = nDigits;
    for (unsigned size = nDigits / 4; size != 0; size /= 4)
      for (unsigned i = 0; i != 3; ++i) {
        const float n = sum(totals + end - size, nPartials, size);
        if (n >= wanted)
          break;
        wanted -= n;
        end -= size;
      }
    remaining = static_cast<unsigned>(wanted);
    prefix |= (end - 1) << shift(pass - 1);
  }
  // After the last digit: how many keys equal the threshold.
  unsigned nEqual(const float *totals, unsigned nPartials) const {
    return static_cast<unsigned>(sum(totals + (prefix & (nDigits - 1)), nPartials, 1));
  }

private:
  static float sum(const float *totals, unsigned nPartials, unsigned size) {
    Quad four{};
    float one = 0.0f;
    for (unsigned partial = 0; partial != nPartials; ++partial, totals += nDigits)
      if (size == 1)
        one += totals[0];
      else
        for (unsigned i = 0; i != size; i += quadSize)
          four += load<Quad>(totals + i);
    return size == 1 ? one : (four[0] + four[1]) + (four[2] + four[3]);
  }
};

// Positions that compete: all but the last nLocal.
static inline unsigned candidates(unsigned filled, unsigned nLocal) {
  return filled > nLocal ? filled - nLocal : 0;
}

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
// pass: a fresh start of the selection, and this part's candidates counted by their first digit.
class GroupKeys : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  FloatsIn weights;   // [groupSize][partPositions]
  FloatsIn sums;      // [groupSize], Z
  FloatsOut keys;     // [partPositions], those of candidates
  WordsOut states;    // [6][3], a Selection for each worker
  FloatsInOut counts; // [64][6]
  unsigned groupSize, partPositions, topK, nLocal;
  unsigned part, stride, length, nWaves, tailLength, tailFirst, chunk;

  bool compute(unsigned worker) {
    Selection{0, topK - nLocal, 1}.keep(&states[worker * Selection::size]);
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
        const QuadBits bits = bitcast<QuadBits>(key) >> Selection::shift(0);
        if (p + quadSize <= n)
          for (unsigned i = 0; i != quadSize; ++i)
            count.add(bits[i] & (nDigits - 1)); // within the counts for NaN too
        else
          for (unsigned i = 0; i != n - p; ++i)
            count.add(bits[i] & (nDigits - 1));
      }
    }
    return true;
  }
};

// Keys that are given: integers below 2^30, or below 2^31 with one pass more (contract E11), as floats of
// the same bits. A fresh start of the selection, and the first pass.
class GivenKeys : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  FloatsIn keys;                     // [partPositions]
  WordsOut states;                   // [6][3], a Selection for each worker
  FloatsInOut counts;                // [64][6]
  unsigned topK, nLocal, morePasses; // 0 or 1
  unsigned part, stride, length, nWaves, tailLength, tailFirst, chunk;

  bool compute(unsigned worker) {
    const unsigned done = 1 - morePasses, shift = Selection::shift(done - 1);
    Selection{0, topK - nLocal, done}.keep(&states[worker * Selection::size]);
    DigitCounts count(&counts[0], worker);
    const Segments segments(part, stride, length, nWaves, tailLength, tailFirst, chunk, *filled);
    const unsigned limit = candidates(*filled, nLocal);
    for (unsigned s = 0; s != segments.count(); ++s) {
      const float *key = &keys[segments.local(s)];
      const unsigned n = segments.valid(s, limit);
      for (unsigned p = worker; p < n; p += numWorkers())
        count.add((bitcast<unsigned>(key[p]) >> shift) & (nDigits - 1));
    }
    return true;
  }
};

// A later pass: settle the last pass's digit, count this part's candidates by the next one.
class KeyHistogram : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  FloatsIn keys;      // [partPositions]
  FloatsIn totals;    // [nPartials][64], of the last pass
  WordsInOut states;  // [6][3], a Selection for each worker
  FloatsInOut counts; // [64][6]
  unsigned nPartials, nLocal, part, stride, length, nWaves, tailLength, tailFirst, chunk;

  bool compute(unsigned worker) {
    unsigned *const state = &states[worker * Selection::size];
    Selection selection = Selection::restored(state);
    selection.settle(&totals[0], nPartials);
    const unsigned shift = Selection::shift(selection.pass++);
    selection.keep(state);

    DigitCounts count(&counts[0], worker);
    const unsigned settled = shift + digitBits, prefix = selection.prefix >> settled;
    const Segments segments(part, stride, length, nWaves, tailLength, tailFirst, chunk, *filled);
    const unsigned limit = candidates(*filled, nLocal);
    for (unsigned s = 0; s != segments.count(); ++s) {
      const float *key = &keys[segments.local(s)];
      const unsigned n = segments.valid(s, limit);
      const auto add = [&](unsigned p) {
        const unsigned bits = bitcast<unsigned>(key[p]);
        if (bits >> settled == prefix)
          count.add((bits >> shift) & (nDigits - 1));
      };
      unsigned p = worker * quadSize;
      for (; p + quadSize <= n; p += numWorkers() * quadSize)
        for (unsigned i = 0; i != quadSize; ++i)
          add(p + i);
      for (; p < n; ++p)
        add(p);
    }
    return true;
  }
};

// Sums of the counts of the workers of `nRows` parts, two digits an item.
class SumCounts : public poplar::MultiVertex {
public:
  FloatsIn counts;  // [nItems][nRows][2][6]
  FloatsOut totals; // [nItems][2]
  unsigned nItems, nRows;

  bool compute(unsigned worker) {
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
    return true;
  }
};

// After the last pass: which of this part's positions lie above the threshold and which equal it,
// and how many of both each piece has. The last nLocal count as above it, and so do all positions
// where there are no more than topK.
class MarkKeys : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  FloatsIn keys;    // [partPositions]
  FloatsIn totals;  // [nPartials][64], of the last pass
  WordsIn states;   // [6][3]
  WordsOut marks;   // [partPositions / 32][2]: one bit a position above, one bit a position equal
  FloatsOut counts; // [partPositions / 32][2]: how many
  FloatsOut tiesToTake; // [1], everyTie where all are taken
  unsigned nPartials, topK, nLocal;
  unsigned part, stride, length, nWaves, tailLength, tailFirst, chunk;

  bool compute(unsigned worker) {
    Selection selection = Selection::restored(&states[worker * Selection::size]);
    selection.settle(&totals[0], nPartials);
    if (worker == 0)
      tiesToTake[0] = selection.remaining < selection.nEqual(&totals[0], nPartials)
                          ? static_cast<float>(selection.remaining)
                          : everyTie;
    const Segments segments(part, stride, length, nWaves, tailLength, tailFirst, chunk, *filled);
    const unsigned limit = *filled <= topK ? 0 : candidates(*filled, nLocal);
    unsigned piece = worker;
    for (unsigned s = 0; s != segments.count(); ++s) {
      const unsigned begin = segments.local(s), end = begin + segments.room(s);
      const unsigned n = segments.valid(s, *filled), nCandidates = segments.valid(s, limit);
      for (; piece * pieceSize < end; piece += numWorkers()) {
        const unsigned first = piece * pieceSize - begin;
        mark(piece, n > first ? minimum(n - first, pieceSize) : 0,
             nCandidates > first ? minimum(nCandidates - first, pieceSize) : 0, selection.prefix);
      }
    }
    return true;
  }

private:
  // The first n positions of a piece hold data, of these the first nCandidates compete.
  void mark(unsigned piece, unsigned n, unsigned nCandidates, unsigned threshold) {
    unsigned above = 0, equal = 0;
    for (unsigned p = 0; p != nCandidates; ++p) {
      const unsigned key = bitcast<unsigned>(keys[piece * pieceSize + p]);
      if (key < threshold) // nearly all
        continue;
      if (key == threshold)
        equal |= 1u << p;
      else
        above |= 1u << p;
    }
    for (unsigned p = nCandidates; p != n; ++p)
      above |= 1u << p;
    marks[piece * 2] = above;
    marks[piece * 2 + 1] = equal;
    counts[piece * 2] = static_cast<float>(__builtin_popcount(above));
    counts[piece * 2 + 1] = static_cast<float>(__builtin_popcount(equal));
  }
};

// The marks of all parts of a slot to some entries of the ascending list of cache rows to fetch, of
// the keys and of the values; where there are fewer than topK, the first row fills up.
class ExpandMarks : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  poplar::Input<unsigned> layer;
  WordsIn marks;       // [nPieces][2], of the slot
  FloatsIn counts;     // [nPieces][2]
  FloatsIn tiesToTake; // [1]
  WordsOut keyRows;    // [nEntries]
  WordsOut valueRows;  // [nEntries]
  unsigned firstEntry, nEntries, rowBase, valueRow, layerRows, nWaveParts, nPieces;
  unsigned stride, length, nWaves, chunk;

  bool compute(unsigned worker) {
    const unsigned perWorker = (nEntries + numWorkers() - 1) / numWorkers();
    const unsigned begin = minimum(worker * perWorker, nEntries);
    const unsigned end = minimum(begin + perWorker, nEntries);
    if (begin == end)
      return true;
    unsigned piece = 0;
    Pair before{}; // above, equal: of the pieces before
    skip(piece, before, firstEntry + begin);
    // Of the piece that it starts within, the first ones may be entries of another worker.
    unsigned others = firstEntry + begin - nSelected(before);
    unsigned entry = begin;
    const unsigned base = rowBase + *layer * layerRows;
    for (Place place(*this, piece); piece != nPieces && entry != end; ++piece, place.next(*this)) {
      unsigned bits = selected(piece, before);
      if (others != 0)
        bits = dropLowest(bits, others);
      others = 0;
      const unsigned row = base + place.position;
      for (; bits != 0 && entry != end; bits &= bits - 1, ++entry) {
        const unsigned keyRow = row + lowestOne(bits);
        keyRows[entry] = keyRow;
        valueRows[entry] = keyRow + valueRow;
      }
      before += load<Pair>(&counts[piece * 2]);
    }
    for (; entry != end; ++entry) {
      keyRows[entry] = base;
      valueRows[entry] = base + valueRow;
    }
    return true;
  }

private:
  // How many positions are selected among pieces with so many above and equal.
  unsigned nSelected(const Pair &before) const {
    return static_cast<unsigned>(before[0] + smaller(before[1], tiesToTake[0]));
  }

  // To the piece that has the wanted entry: eight pieces at a time, then one.
  void skip(unsigned &piece, Pair &before, unsigned entry) const {
    skipBy<8>(piece, before, entry);
    skipBy<1>(piece, before, entry);
  }
  template <unsigned step> void skipBy(unsigned &piece, Pair &before, unsigned entry) const {
    for (; piece + step <= nPieces; piece += step) {
      Pair after = before;
      for (unsigned i = 0; i != step; ++i)
        after += load<Pair>(&counts[(piece + i) * 2]);
      if (nSelected(after) > entry)
        break;
      before = after;
    }
  }

  // The marks of a piece, of its ties only the first that are still to be taken.
  unsigned selected(unsigned piece, const Pair &before) const {
    return marks[piece * 2] | firstTies(marks[piece * 2 + 1], tiesToTake[0] - before[1]);
  }

  // Without the n lowest of its ones, of which it has more: halves of what is left, five times.
  static unsigned dropLowest(unsigned bits, unsigned n) {
    unsigned at = 0;
    for (unsigned width = 16; width != 0; width /= 2) {
      const unsigned low = __builtin_popcount((bits >> at) & ((1u << width) - 1));
      if (n >= low) {
        n -= low;
        at += width;
      }
    }
    return bits >> at << at;
  }

  // Where a piece begins: parts follow one another within a wave, and within the tail.
  struct Place {
    unsigned wave, left; // pieces of the wave that are left, this one too
    unsigned position;
    Place(const ExpandMarks &v, unsigned piece) : wave(0) {
      const unsigned inWave = v.piecesOfWave();
      for (; piece >= inWave && wave != v.nWaves; piece -= inWave)
        ++wave;
      begin(v, piece);
    }
    void next(const ExpandMarks &v) {
      position += pieceSize;
      if (--left == 0) { // never in the tail
        ++wave;
        begin(v, 0);
      }
    }

  private:
    void begin(const ExpandMarks &v, unsigned piece) {
      const bool inTail = wave == v.nWaves;
      left = inTail ? ~0u : v.piecesOfWave() - piece;
      position = (inTail ? *v.filled & ~(v.chunk - 1) : wave * v.stride) + piece * pieceSize;
    }
  };
  unsigned piecesOfWave() const { return length / pieceSize * nWaveParts; }
};

} // namespace sparq
