// SPDX-License-Identifier: Apache-2.0
//
// Step 2 of SparQ, selection (contract E6.3): the last nLocal positions and the best of the others
// by group-summed weight, equal keys by lower index.
//
// The parts of a slot find the exact topK-th key together by radix selection: keys are non-negative
// floats, so their bit patterns order them. Eight passes settle four bits each, from the top: count
// the candidates by digit on every part, add the counts up over the parts, pick the digit in which
// the topK-th key lies.
//
//   keys 9 7 7 7 3, two wanted: the threshold is 7, one key lies above it, so one of the three
//   sevens is taken: the first.
//
// Then every part knows the threshold and how many keys that equal it (ties) lie in front of its
// own, and marks what it selects, one bit a position.
#include "segments.hpp"

namespace sparq {

static constexpr unsigned digitBits = 4, nDigits = 16, nPasses = 8;

// What each worker remembers from pass to pass.
struct Selection {
  unsigned prefix;    // digits of the threshold settled so far
  unsigned remaining; // keys still wanted among those that begin with the prefix
  unsigned pass;      // passes done

  // The digit of pass p sits at this bit.
  static unsigned shift(unsigned pass) { return 32 - digitBits * (pass + 1); }
  // Settle the digit that the totals of the last pass decide.
  void settle(const unsigned *totals) {
    unsigned digit = nDigits - 1;
    while (digit != 0 && totals[digit] < remaining)
      remaining -= totals[digit--];
    prefix |= digit << shift(pass - 1);
  }
};

// key[p] = sum over the group of weight[h, p] / Z[h], ascending by head.
class GroupKeys : public poplar::MultiVertex {
public:
  FloatsIn weights; // [groupSize][nLocal]
  FloatsIn sums;    // [groupSize], Z
  FloatsOut keys;   // [nLocal]
  unsigned groupSize, nLocal;

  bool compute(unsigned worker) {
    for (unsigned p = worker * nLanes; p < nLocal; p += numWorkers() * nLanes) {
      Lanes key{};
      for (unsigned h = 0; h != groupSize; ++h)
        key += loadLanes(&weights[h * nLocal + p]) / sums[h];
      storeLanes(&keys[p], key);
    }
    return true;
  }
};

// One pass: settle the last pass's digit, count this part's candidates by the next one.
class KeyHistogram : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  FloatsIn keys;     // [nLocal]
  WordsIn totals;    // [16], of the last pass
  WordsInOut states; // [6][3], a Selection for each worker; zero before the first pass
  WordsOut counts;   // [6][16]
  unsigned topK, nRecent, part, stride, length, nWaves, tailLength, chunk;

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
    const unsigned limit = *filled > nRecent ? *filled - nRecent : 0; // candidates are not local
    const Segments segments(part, stride, length, nWaves, tailLength, chunk, *filled);
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
    for (unsigned digit = worker; digit < nDigits; digit += numWorkers()) {
      unsigned sum = 0;
      for (unsigned row = 0; row != nRows; ++row)
        sum += counts[row * nDigits + digit];
      totals[digit] = sum;
    }
    return true;
  }
};

// After the last pass: the threshold, and in each segment of this part how many candidates equal
// it.
class CountTies : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  FloatsIn keys;      // [nLocal]
  WordsIn totals;     // [16], of the last pass
  WordsIn states;     // [6][3]
  WordsOut threshold; // [2]: bits of the topK-th key, ties to take
  WordsOut ties;      // [segments]
  unsigned nRecent, part, stride, length, nWaves, tailLength, chunk;

  bool compute(unsigned worker) {
    const unsigned *state = &states[worker * 3];
    Selection selection{state[0], state[1], state[2]};
    selection.settle(&totals[0]);
    if (worker == 0) {
      threshold[0] = selection.prefix;
      threshold[1] = selection.remaining;
    }
    const unsigned limit = *filled > nRecent ? *filled - nRecent : 0;
    const Segments segments(part, stride, length, nWaves, tailLength, chunk, *filled);
    for (unsigned s = worker; s < segments.count(); s += numWorkers()) {
      const float *key = &keys[segments.local(s)];
      const unsigned n = segments.valid(s, limit);
      unsigned equal = 0;
      for (unsigned p = 0; p != n; ++p)
        equal += bitcast<unsigned>(key[p]) == selection.prefix;
      ties[s] = equal;
    }
    return true;
  }
};

// One bit for each position of this part that is selected, and how many each segment has.
class SelectMask : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  FloatsIn keys;     // [nLocal]
  WordsIn threshold; // [2]
  WordsIn allTies;   // [segments][nParts]
  WordsOut mask;     // [nLocal / 32]
  WordsOut counts;   // [segments]
  unsigned topK, nRecent, nParts, part, stride, length, nWaves, tailLength, chunk;

  bool compute(unsigned worker) {
    const Segments segments(part, stride, length, nWaves, tailLength, chunk, *filled);
    const unsigned limit = *filled > nRecent ? *filled - nRecent : 0;
    const bool takeAll = *filled <= topK;
    for (unsigned s = worker; s < segments.count(); s += numWorkers()) {
      unsigned tiesBefore = 0;
      for (unsigned i = 0; i != s * nParts + part; ++i)
        tiesBefore += allTies[i];
      const float *key = &keys[segments.local(s)];
      const unsigned n = segments.valid(s, *filled), nCandidates = segments.valid(s, limit);
      unsigned taken = 0;
      for (unsigned word = 0; word != segments.room(s) / 32; ++word) {
        unsigned bits = 0;
        for (unsigned bit = 0; bit != 32; ++bit) {
          const unsigned p = word * 32 + bit;
          if (p >= n)
            break;
          const unsigned pattern = bitcast<unsigned>(key[p]);
          bool take = takeAll || p >= nCandidates || pattern > threshold[0];
          if (!take && pattern == threshold[0])
            take = tiesBefore++ < threshold[1];
          bits |= static_cast<unsigned>(take) << bit;
          taken += take;
        }
        mask[segments.local(s) / 32 + word] = bits;
      }
      counts[s] = taken;
    }
    return true;
  }
};

// The marks of all parts of a slot to the ascending list of cache rows to fetch; where there are
// fewer than topK, the first row fills up.
class ExpandMask : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  WordsIn masks;  // [nParts][nLocal / 32]
  WordsIn counts; // [segments][nParts]: ascending by position
  WordsOut rows;  // [topK]
  unsigned topK, rowBase, nParts, nLocal, stride, length, nWaves, tailLength, chunk;

  bool compute(unsigned worker) {
    const Segments segments(0, stride, length, nWaves, tailLength, chunk, *filled);
    const unsigned nLists = segments.count() * nParts;
    const unsigned perWorker = (nLists + numWorkers() - 1) / numWorkers();
    const unsigned first = minimum(worker * perWorker, nLists),
                   end = minimum(first + perWorker, nLists);
    unsigned index = 0;
    for (unsigned i = 0; i != first; ++i)
      index += counts[i];
    for (unsigned i = first; i != end; ++i) {
      if (counts[i] == 0)
        continue;
      const unsigned s = i / nParts, part = i % nParts;
      const unsigned row = rowBase + segments.begin(s, part);
      const unsigned *mask = &masks[part * (nLocal / 32) + segments.local(s) / 32];
      for (unsigned word = 0; word != segments.room(s) / 32; ++word)
        for (unsigned bits = mask[word], p = row + word * 32; bits != 0; bits >>= 1, ++p)
          if (bits & 1)
            rows[index++] = p;
    }
    if (end == nLists && first != end) // the worker with the last list
      while (index < topK)
        rows[index++] = rowBase;
    return true;
  }
};

} // namespace sparq
