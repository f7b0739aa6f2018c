// SPDX-License-Identifier: Apache-2.0
//
// SparQ, selection of positions: from marks to a list. Each part decides which of its doubtful
// positions are selected, then makes its entries of the list from the marks of all parts.
//
// Blocks of 64 positions are ordered by (segment, part, block), of those parts that have the
// segment: ascending by position.
#include "key_bin.hpp"

namespace sparq {

static inline float largestOfSixteen(const float *of) {
  const Quad two = larger(load<Quad>(of), load<Quad>(of + quadSize)),
             more = larger(load<Quad>(of + 2 * quadSize), load<Quad>(of + 3 * quadSize));
  return largestOf(larger(two, more));
}

// How many doubtful keys of the slot come before each of this part's: larger ones, and equal ones
// at lower positions. Those of its own block are left to TakeKeys. Each worker looks at some of
// all.
struct RankKeys : poplar::MultiVertex {
  WordsIn states;    // [6][4], a Selection for each worker
  FloatsIn doubtful; // [nBlocks][2], of the slot: see MarkKeys
  WordsIn doubts;    // [partPositions / 32]
  FloatsOut before;  // [partPositions / 64][2][6]: of the key, by each worker; where there is one
  unsigned partPositions, nBlocks, part, length, nWaves, tailLength, tailFirst, nWaveParts;

  void compute(unsigned worker) {
    const bool exact = Selection::restored(&states[worker * Selection::size]).isExact();
    const unsigned n = nBlocks * 2, perWorker = (n / numWorkers() / step + 1) * step;
    const unsigned begin = minimum(worker * perWorker, n), end = minimum(begin + perWorker, n);
    for (unsigned block = 0; block * blockSize < partPositions; ++block) {
      if ((doubts[block * piecesOfBlock] | doubts[block * piecesOfBlock + 1]) == 0)
        continue;
      const unsigned own = inOrder(block) * 2;
      float *const of = &before[block * 2 * nOfAll + worker];
      if (exact) {
        of[0] = sum(begin, minimum(end, own));
        continue;
      }
      of[0] = count(begin, end, own, doubtful[own]);
      if (doubtful[own + 1] != 0.0f)
        of[nOfAll] = count(begin, end, own, doubtful[own + 1]);
    }
  }

private:
  static constexpr unsigned nOfAll = 6, step = 4 * quadSize;
  float sum(unsigned first, unsigned end) const {
    float n = 0.0f;
    for (unsigned i = first; i < end; ++i)
      n += doubtful[i];
    return n;
  }
  // How many of doubtful[first, end) come before a key of the block at `own`.
  float count(unsigned first, unsigned end, unsigned own, float key) const {
    const float *const of = &doubtful[0];
    float n = 0.0f;
    const auto look = [&](unsigned i) {
      const unsigned block = i & ~1u;
      if (block != own && (of[i] > key || (block < own && of[i] == key)))
        n += 1.0f;
    };
    unsigned i = first;
    for (; i + step <= end; i += step)
      if (largestOfSixteen(of + i) >= key) // seldom
        for (unsigned j = 0; j != step; ++j)
          look(i + j);
    for (; i < end; ++i)
      look(i);
    return n;
  }

  // The place of this part's block among those of the slot, ascending by position.
  unsigned inOrder(unsigned block) const {
    const unsigned perWave = length / blockSize;
    unsigned place = 0;
    for (unsigned wave = 0; wave != nWaves; ++wave, block -= perWave, place += perWave * nWaveParts)
      if (block < perWave)
        return place + part * perWave + block;
    return place + (part - tailFirst) * (tailLength / blockSize) + block;
  }
};

// Selects a doubtful position if fewer doubtful ones come before it than are wanted.
// And how many of each block are selected.
struct TakeKeys : poplar::MultiVertex {
  WordsIn states;    // [6][4], a Selection for each worker
  FloatsIn doubtful; // [partPositions / 64][2], of this part: see MarkKeys
  WordsIn doubts;    // [partPositions / 32]
  FloatsIn before;   // [partPositions / 64][2][6]: see RankKeys
  WordsInOut marks;  // [partPositions / 32]
  FloatsOut counts;  // [partPositions / 64]
  unsigned partPositions;

  void compute(unsigned worker) {
    const Selection selection = Selection::restored(&states[worker * Selection::size]);
    const float wanted = static_cast<float>(selection.remaining);
    for (unsigned block = worker; block * blockSize < partPositions; block += numWorkers()) {
      unsigned left[piecesOfBlock], any = 0;
      for (unsigned side = 0; side != piecesOfBlock; ++side)
        any |= left[side] = doubts[block * piecesOfBlock + side];
      if (any != 0) {
        if (selection.isExact())
          keepFirst(left, wanted - sixOf(block * 2));
        else
          keepBest(left, block, wanted);
      }
      unsigned n = 0;
      for (unsigned side = 0; side != piecesOfBlock; ++side) {
        const unsigned piece = block * piecesOfBlock + side, mark = marks[piece] | left[side];
        marks[piece] = mark;
        n += __builtin_popcount(mark);
      }
      counts[block] = static_cast<float>(n);
    }
  }

private:
  float sixOf(unsigned key) const {
    const float *const of = &before[key * 6];
    return ((of[0] + of[1]) + (of[2] + of[3])) + (of[4] + of[5]);
  }
  // Of equal keys the first n.
  static void keepFirst(unsigned *left, float n) {
    for (unsigned side = 0; side != piecesOfBlock; ++side)
      for (unsigned each = left[side]; each != 0; each &= each - 1, n -= 1.0f)
        if (n <= 0.0f)
          left[side] &= ~(each & (0u - each));
  }
  // Of one key, or of two the first one at the higher position.
  void keepBest(unsigned *left, unsigned block, float wanted) const {
    const float higher = doubtful[block * 2], lower = doubtful[block * 2 + 1];
    const unsigned first = left[0] != 0 ? 0 : 1, last = left[1] != 0 ? 1 : 0;
    const unsigned low = left[first] & (0u - left[first]);
    const bool two = lower != 0.0f;
    if (two && sixOf(block * 2 + 1) + (higher > lower ? 1.0f : 0.0f) >= wanted)
      left[first] &= ~low;
    if (sixOf(block * 2) + (two && lower >= higher ? 1.0f : 0.0f) >= wanted)
      left[last] &= two && first == last ? low : 0u;
  }
};

// The largest doubtful key of a slot: of some of them, by each worker.
struct LargestDoubtful : poplar::MultiVertex {
  FloatsIn doubtful; // [nBlocks][2]
  FloatsOut largest; // [6]
  unsigned nBlocks;

  void compute(unsigned worker) {
    constexpr unsigned step = 4 * quadSize;
    float all = 0.0f;
    unsigned i = worker * step;
    for (; i + step <= nBlocks * 2; i += numWorkers() * step)
      all = larger(all, largestOfSixteen(&doubtful[i]));
    for (; i < nBlocks * 2; ++i)
      all = larger(all, doubtful[i]);
    largest[worker] = all;
  }
};

// Whether any slot has to begin again.
struct AnyClash : poplar::Vertex {
  FloatsIn largest; // [n], an even number: of doubtful keys
  poplar::Output<bool> any;
  unsigned n;

  void compute() {
    Pair all{};
    for (unsigned i = 0; i != n; i += pairSize)
      all = larger(all, load<Pair>(&largest[i]));
    *any = largestOf(all) >= clash;
  }
};

// The marks of all parts of a slot to some entries of the ascending list of cache rows to fetch, of
// the keys and of the values; where there are fewer than topK, the first row fills up.
struct ExpandMarks : poplar::MultiVertex {
  poplar::Input<unsigned> filled, layer;
  WordsIn marks;      // [nBlocks][2], of the slot
  FloatsIn counts;    // [nBlocks]
  WordsOut keyRows;   // [nEntries]
  WordsOut valueRows; // [nEntries]
  unsigned firstEntry, nEntries, rowBase, valueRow, layerRows, nWaveParts, nBlocks;
  unsigned stride, length, nWaves, chunk;

  void compute(unsigned worker) {
    const unsigned perWorker = (nEntries + numWorkers() - 1) / numWorkers();
    const unsigned begin = minimum(worker * perWorker, nEntries);
    const unsigned end = minimum(begin + perWorker, nEntries);
    if (begin == end)
      return;
    unsigned block = 0;
    float before = 0.0f; // selected in the blocks before
    const float wanted = static_cast<float>(firstEntry + begin);
    skipBy<32>(block, before, wanted);
    skipBy<8>(block, before, wanted);
    skipBy<1>(block, before, wanted);
    // The first entries of the block that it starts in may belong to another worker.
    unsigned others = static_cast<unsigned>(wanted - before);
    unsigned entry = begin;
    const unsigned base = rowBase + *layer * layerRows;
    for (Place place(*this, block); block != nBlocks && entry != end; ++block, place.next(*this))
      for (unsigned side = 0; side != piecesOfBlock; ++side) {
        unsigned bits = marks[block * piecesOfBlock + side];
        if (others != 0) {
          const unsigned n = __builtin_popcount(bits);
          bits = others < n ? dropLowest(bits, others) : 0;
          others -= minimum(others, n);
        }
        const unsigned row = base + place.position + side * pieceSize;
        for (; bits != 0 && entry != end; bits &= bits - 1, ++entry) {
          const unsigned keyRow = row + lowestOne(bits);
          keyRows[entry] = keyRow;
          valueRows[entry] = keyRow + valueRow;
        }
      }
    for (; entry != end; ++entry) {
      keyRows[entry] = base;
      valueRows[entry] = base + valueRow;
    }
  }

private:
  // On to the block that has the wanted entry, `step` blocks at a time.
  template <unsigned step> void skipBy(unsigned &block, float &before, float wanted) const {
    for (; block + step <= nBlocks; block += step) {
      const float after = before + ofBlocks<step>(&counts[block]);
      if (after > wanted)
        break;
      before = after;
    }
  }
  template <unsigned n> static float ofBlocks(const float *const count) {
    if (n == 1) {
      return *count;
    } else {
      Quad sum{};
      for (unsigned i = 0; i < n; i += quadSize)
        sum += load<Quad>(count + i);
      return (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
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

  // Where a block begins: parts follow one another within a wave, and within the tail.
  struct Place {
    unsigned wave, left; // blocks of the wave that are left, this one too
    unsigned position;
    Place(const ExpandMarks &v, unsigned block) : wave(0) {
      const unsigned inWave = v.blocksOfWave();
      for (; block >= inWave && wave != v.nWaves; block -= inWave)
        ++wave;
      begin(v, block);
    }
    void next(const ExpandMarks &v) {
      position += blockSize;
      if (--left == 0) { // never in the tail
        ++wave;
        begin(v, 0);
      }
    }

  private:
    void begin(const ExpandMarks &v, unsigned block) {
      const bool inTail = wave == v.nWaves;
      left = inTail ? ~0u : v.blocksOfWave() - block;
      position = (inTail ? *v.filled & ~(v.chunk - 1) : wave * v.stride) + block * blockSize;
    }
  };
  unsigned blocksOfWave() const { return length / blockSize * nWaveParts; }
};

} // namespace sparq
