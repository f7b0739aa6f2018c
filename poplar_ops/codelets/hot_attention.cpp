// SPDX-License-Identifier: Apache-2.0
//
// SparQ: exact attention over the selected rows where they are, in the buffer of hot rows (contract
// E6.4). Keys are spread by pairs of lanes of the lane sum, and by place: set s % 2^setShift. Values are
// spread by components. So every sum is added up in its order, wherever a row happens to be.
#include "hot_rows.hpp"

namespace sparq {

// The sums of some pairs of lanes, of the selected keys that this part has.
class LaneSums : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  poplar::Input<unsigned> layer;
  WordsIn places; // [topK], place + 1
  HalvesIn query; // [groupSize][headDim]
  HalvesIn keys;  // [nLayers][nRows][headDim / 4]
  FloatsOut sums; // [topK][groupSize][2]
  unsigned groupSize, headDim, topK, nRows, pair, set, setShift;

  bool compute(unsigned worker) {
    const unsigned n = minimum(*filled, topK), width = headDim / 4;
    for (unsigned e = worker; e < n; e += numWorkers()) {
      const unsigned place = places[e] - 1;
      if (setOf(place, setShift) != set)
        continue;
      const half *key = &keys[(*layer * nRows + (place >> setShift)) * width];
      unsigned h = 0;
      for (; h + 4 <= groupSize; h += 4)
        ofHeads<4>(key, h, e);
      for (; h + 2 <= groupSize; h += 2)
        ofHeads<2>(key, h, e);
      if (h != groupSize)
        ofHeads<1>(key, h, e);
    }
    return true;
  }

private:
  // Of nHeads heads at once, for which a key is loaded and widened once.
  template <unsigned nHeads> void ofHeads(const half *key, unsigned firstHead, unsigned entry) {
    const half *const q = &query[firstHead * headDim + pair * 2];
    Pair of[nHeads] = {};
    const auto add = [&](unsigned i) {
      const Pair two = load<Pair>(key + i);
      for (unsigned h = 0; h != nHeads; ++h)
        of[h] += load<Pair>(q + h * headDim + i * 4) * two;
    };
    unsigned i = 0;
    for (; i + 4 <= headDim / 4; i += 4) // two pairs to a pass, which has a price of its own
      add(i), add(i + 2);
    if (i != headDim / 4)
      add(i);
    for (unsigned h = 0; h != nHeads; ++h)
      store(&sums[(entry * groupSize + firstHead + h) * 2], of[h]);
  }
};

// Exact scores of some entries of the list, from the sums of all lanes.
class LaneScores : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  WordsIn places;   // [nRows], place + 1
  FloatsIn sums;    // [nSets][4][nRows][groupSize][2]
  FloatsOut scores; // [groupSize][nRows]; the lowest number for rows that stand for no position
  FloatsOut maxima; // [6][groupSize]
  unsigned groupSize, nRows, firstRow, setShift;
  float scale;

  bool compute(unsigned worker) {
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
    return true;
  }
};

// Weighted sums of the values of all entries, of `width` components: the partial sums of blocks of 64
// entries, each ascending from +0 (contract E3).
class HotValues : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  poplar::Input<unsigned> layer;
  WordsIn places;     // [topK], place + 1
  FloatsIn weights;   // [groupSize][topK]
  HalvesIn values;    // [nLayers][nRows][width]
  FloatsOut partials; // [ceil(topK / 64)][groupSize][width]
  unsigned groupSize, topK, nRows, width;

  bool compute(unsigned worker) {
    unsigned h = 0;
    for (; h + 4 <= groupSize; h += 4)
      ofHeads<4>(h, worker);
    for (; h + 2 <= groupSize; h += 2)
      ofHeads<2>(h, worker);
    if (h != groupSize)
      ofHeads<1>(h, worker);
    return true;
  }

private:
  // Of nHeads heads at once, for which a value is looked up and widened once. Pairs of components of all blocks
  // are shared out.
  template <unsigned nHeads> void ofHeads(unsigned firstHead, unsigned worker) {
    const unsigned n = minimum(*filled, topK), nBlocks = (topK + blockSize - 1) / blockSize;
    const half *base = &values[*layer * nRows * width];
    unsigned c = worker * pairSize;
    for (unsigned b = 0; b != nBlocks; ++b, c -= width)
      for (; c < width; c += numWorkers() * pairSize) {
        const unsigned stop = minimum((b + 1) * blockSize, n);
        Pair sums[nHeads] = {};
        const auto add = [&](unsigned e) {
          const Pair value = load<Pair>(base + (places[e] - 1) * width + c);
          for (unsigned i = 0; i != nHeads; ++i)
            sums[i] += weights[(firstHead + i) * topK + e] * value;
        };
        unsigned e = b * blockSize;
        for (; e + 2 <= stop; e += 2) // two to a pass, which has a price of its own
          add(e), add(e + 1);
        if (e < stop)
          add(e);
        for (unsigned i = 0; i != nHeads; ++i)
          store(&partials[(b * groupSize + firstHead + i) * width + c], sums[i]);
      }
  }
};

} // namespace sparq
