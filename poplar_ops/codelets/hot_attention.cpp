// SPDX-License-Identifier: Apache-2.0
//
// SparQ: exact attention over the selected rows where they are, in the buffer of hot rows (contract
// E6.4). Keys are spread by pairs of lanes of the lane sum, and by place: set s % 2^setShift.
// Values are spread by components. So every sum is added up in its order, wherever a row happens to
// be.
#include "hot_rows.hpp"

namespace sparq {

// The sums of some pairs of lanes, of the selected keys that this part has.
struct LaneSums : poplar::MultiVertex {
  poplar::Input<unsigned> filled, layer;
  WordsIn places; // [topK], place + 1
  HalvesIn query; // [groupSize][headDim]
  HalvesIn keys;  // [nLayers][nRows][headDim / 4]
  FloatsOut sums; // [topK][groupSize][2]
  unsigned groupSize, headDim, topK, nRows, pair, set, setShift, each;

  void compute(unsigned worker) {
    // A worker has a run of the list. Copies, for a sum that is stored could be any of these.
    const unsigned n = minimum(*filled, topK), width = headDim / 4, runs = each,
                   end = minimum((worker + 1) * runs, n), *const own = &places[0], shift = setShift,
                   heads = groupSize,
                   wanted = setOf(set + 1, shift); // of what is written, a place + 1
    const half *const first = &keys[*layer * nRows * width];
    for (unsigned e = minimum(worker * runs, end); e != end; ++e) {
      const unsigned written = own[e];
      if (setOf(written, shift) != wanted)
        continue;
      const half *key = first + ((written - 1) >> shift) * width;
      unsigned h = 0;
      for (; h + 2 <= heads; h += 2) // of more the sums were not all in registers
        ofHeads<2>(key, h, e);
      if (h != heads)
        ofHeads<1>(key, h, e);
    }
  }

private:
  // Of nHeads heads at once, for which a key is loaded and widened once.
  template <unsigned nHeads> void ofHeads(const half *key, unsigned firstHead, unsigned entry) {
    const unsigned ofHead = headDim;
    const half *q = &query[firstHead * ofHead + pair * 2];
    Pair of[nHeads] = {};
    const auto add = [&] {
      const Pair two = load<Pair>(key);
      for (unsigned h = 0; h != nHeads; ++h)
        of[h] += load<Pair>(q + h * ofHead) * two;
      key += pairSize;
      q += nLanes;
    };
    for (unsigned n = ofHead / nLanes / 2; n != 0;
         --n) // two pairs to a pass, which may have a price
      add(), add();
    if (ofHead / nLanes % 2 != 0)
      add();
    for (unsigned h = 0; h != nHeads; ++h)
      store(&sums[(entry * groupSize + firstHead + h) * 2], of[h]);
  }
};

// Exact scores of some entries of the list, from the sums of all lanes.
struct LaneScores : poplar::MultiVertex {
  poplar::Input<unsigned> filled;
  WordsIn places;   // [nRows], place + 1
  FloatsIn sums;    // [nSets][4][nRows][groupSize][2]
  FloatsOut scores; // [groupSize][nRows]; the lowest number for rows that stand for no position
  FloatsOut maxima; // [6][groupSize]
  unsigned groupSize, nRows, firstRow, setShift;
  float scale;

  void compute(unsigned worker) {
    const unsigned n = *filled > firstRow ? minimum(*filled - firstRow, nRows) : 0;
    const unsigned perPair = nRows * groupSize * 2;
    // Rows of all heads shared out: of each head a worker goes on where it is after the last one.
    unsigned row = worker;
    for (unsigned h = 0; h != groupSize; ++h, row -= nRows) {
      float largest = lowest;
      for (; row < nRows; row += numWorkers()) {
        float score = lowest;
        if (row < n) {
          const unsigned set = setOf(places[row] - 1, setShift);
          const float *lanes = &sums[set * 4 * perPair + (row * groupSize + h) * 2];
          const Pair sum = (load<Pair>(lanes) + load<Pair>(lanes + 2 * perPair)) +
                           (load<Pair>(lanes + perPair) + load<Pair>(lanes + 3 * perPair));
          score = (sum[0] + sum[1]) * scale;
          largest = larger(score, largest);
        }
        scores[h * nRows + row] = score;
      }
      maxima[worker * groupSize + h] = largest;
    }
  }
};

// Weighted sums of the values of entries from firstEntry on, whole blocks, of `width` components:
// the partial sums of blocks of 64 entries, each ascending from +0 (contract E3).
struct HotValues : poplar::MultiVertex {
  poplar::Input<unsigned> filled, layer;
  WordsIn places;     // [topK], place + 1
  FloatsIn weights;   // [groupSize][topK]
  HalvesIn values;    // [nLayers][nRows][width]
  FloatsOut partials; // [ceil(topK / 64)][groupSize][width]
  unsigned groupSize, topK, firstEntry, nRows, width;

  void compute(unsigned worker) {
    // Fewer heads at a time where there are workers for it.
    const unsigned items = (topK + blockSize - 1) / blockSize * width / pairSize;
    const bool few = items * (groupSize / 2) <= numWorkers();
    unsigned h = 0, c = worker * pairSize;
    for (; h + 4 <= groupSize && !few; h += 4)
      ofHeads<4>(h, c);
    for (; h + 2 <= groupSize; h += 2)
      ofHeads<2>(h, c);
    if (h != groupSize)
      ofHeads<1>(h, c);
  }

private:
  // Of nHeads heads at once, for which a value is looked up and widened once. Pairs of components
  // of all blocks are shared out, from c on.
  template <unsigned nHeads> void ofHeads(unsigned firstHead, unsigned &c) {
    const unsigned n = *filled > firstEntry ? minimum(*filled - firstEntry, topK) : 0,
                   nBlocks = (topK + blockSize - 1) / blockSize;
    const half *base = &values[*layer * nRows * width];
    for (unsigned b = 0; b != nBlocks; ++b, c -= width)
      for (; c < width; c += numWorkers() * pairSize) {
        const unsigned begin = b * blockSize, stop = minimum(begin + blockSize, n),
                       rows = stop > begin ? stop - begin : 0, ofRow = width, ofHead = topK;
        const unsigned *place = &places[begin];
        const float *weight = &weights[firstHead * ofHead + begin];
        const half *const value = base + c;
        Pair sums[nHeads] = {};
        const auto add = [&] {
          const Pair two = load<Pair>(value + (*place++ - 1) * ofRow);
          for (unsigned i = 0; i != nHeads; ++i)
            sums[i] += weight[i * ofHead] * two;
          ++weight;
        };
        for (unsigned left = rows / 2; left != 0; --left) // two to a pass
          add(), add();
        if (rows % 2 != 0)
          add();
        for (unsigned i = 0; i != nHeads; ++i)
          store(&partials[(b * groupSize + firstHead + i) * width + c], sums[i]);
      }
  }
};

} // namespace sparq
