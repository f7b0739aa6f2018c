// SPDX-License-Identifier: Apache-2.0
//
// Dense attention over keys and values in SRAM (contract E3, E6.4), spread evenly over all tiles.
//
// Keys of two positions lie side by side, lane by lane of the lane sum: one instruction multiplies
// them by a component of two heads and adds the four products to four sums. Products of fp16 are
// exact, so a sum is rounded once for each.
//
// Values are kept in units: eight components of a block of 64 positions, as pairs of components.
#include "code_products.hpp"

namespace sparq {

// A new key into the part that has its position.
class KeepKey : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled; // its position
  poplar::Input<unsigned> active; // 0 or 1
  poplar::Input<unsigned> layer;
  HalvesIn row;     // [headDim]
  HalvesInOut keys; // [nLayers][length / 2][headDim][2]
  unsigned headDim, length, firstPosition;

  bool compute(unsigned worker) {
    const unsigned d = headDim, n = length, local = *filled - firstPosition; // wraps if before
    if (!*active || local >= n)
      return true;
    const unsigned perLane = d / nLanes * pairSize;
    half *const to = &keys[(*layer * n + (local & ~1u)) * d];
    for (unsigned c = worker; c < d; c += numWorkers()) {
      unsigned short bits;
      __builtin_memcpy(&bits, &row[c], sizeof(bits));
      half *const word = to + c % nLanes * perLane + c / nLanes * pairSize;
      // What comes behind the last position is 0.
      storeWord(word, local % 2 == 0 ? bits : (loadWord(word) & 0xFFFFu) | unsigned(bits) << 16);
    }
    return true;
  }
};

// The same of a value: a part may have some of its units.
class KeepValue : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  poplar::Input<unsigned> active;
  poplar::Input<unsigned> layer;
  HalvesIn row;       // [headDim]
  HalvesInOut values; // [nLayers][nUnits][4][64][2]
  unsigned headDim, nUnits, firstUnit;

  bool compute(unsigned worker) {
    if (!*active)
      return true;
    const unsigned n = nUnits, perBlock = headDim / nLanes, position = *filled,
                   own = position / blockSize * perBlock - firstUnit;
    half *const base = &values[*layer * n * nLanes * blockSize];
    for (unsigned octet = worker; octet < perBlock; octet += numWorkers()) {
      const unsigned unit = own + octet; // wraps around if before
      if (unit >= n)
        continue;
      half *to = base + unit * nLanes * blockSize + position % blockSize * pairSize;
      for (unsigned c = 0; c != nLanes; c += pairSize, to += blockSize * pairSize)
        storeWord(to, loadWord(&row[octet * nLanes + c]));
    }
    return true;
  }
};

// The query of two heads side by side, lane by lane; of an odd number the last one is twice.
class SpreadQuery : public poplar::MultiVertex {
public:
  HalvesIn query;   // [groupSize][headDim]
  FloatsOut spread; // [(groupSize + 1) / 2][headDim][2]
  unsigned groupSize, headDim;

  bool compute(unsigned worker) {
    const unsigned d = headDim, perLane = d / nLanes * pairSize, heads = groupSize;
    unsigned c = worker * pairSize; // shared out over all heads
    for (unsigned h = 0; h < heads; h += 2, c -= d)
      for (; c < d; c += numWorkers() * pairSize) {
        const Pair one = load<Pair>(&query[h * d + c]),
                   other = load<Pair>(&query[minimum(h + 1, heads - 1) * d + c]);
        float *const to = &spread[h * d + c % nLanes * perLane + c / nLanes * pairSize];
        store(to, Pair{one[0], other[0]});
        store(to + perLane, Pair{one[1], other[1]});
      }
    return true;
  }
};

// Scores of the positions of a part, two of them at a time.
class PairScores : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  poplar::Input<unsigned> layer;
  HalvesIn keys;    // [nLayers][length / 2][headDim][2]
  FloatsIn spread;  // [(groupSize + 1) / 2][headDim][2]
  FloatsOut lanes;  // [6][8][2][2]: sums of two heads and two positions
  FloatsOut scores; // [groupSize][length]
  unsigned groupSize, headDim, length, firstPosition;
  float scale;

  bool compute(unsigned worker) {
    // Copies, for a score that is stored could be any of these.
    const unsigned n = *filled > firstPosition ? minimum(*filled - firstPosition, length) : 0,
                   d = headDim, heads = groupSize, ofHead = length;
    const half *const first = &keys[*layer * ofHead * d];
    const float *const query = &spread[0], times = scale;
    float *const own = &lanes[worker * nLanes * 4], *const to = &scores[0];
    OuterSums sums;
    for (unsigned p = worker * pairSize; p < n; p += numWorkers() * pairSize)
      for (unsigned h = 0; h < heads; h += 2) {
        sumLanes(first + p * d, query + h * d, d / nLanes, own, sums);
        store(to + h * ofHead + p, treeOfPairs(own) * times);
        if (h + 1 != heads)
          store(to + (h + 1) * ofHead + p, treeOfPairs(own + pairSize) * times);
      }
    return true;
  }

private:
  static void sumLanes(const half *key, const float *query, unsigned perLane, float *to,
                       OuterSums &sums) {
    const auto add = [&](const Pair &positions) {
      sums.add(positions, load<Pair>(query));
      query += pairSize;
    };
    const bool even = perLane % 2 == 0; // else lanes begin at words
    for (unsigned lane = 0; lane != nLanes; ++lane, to += 4) {
      if (even)
        for (unsigned left = perLane / 2; left != 0; --left, key += quadSize) {
          const PairsOf<Quad> two = pairsOf(load<Quad>(key));
          add(two.of[0]), add(two.of[1]);
        }
      else
        for (unsigned left = perLane; left != 0; --left, key += pairSize)
          add(load<Pair>(key));
      store(to, sums.next());
      store(to + pairSize, sums.next());
    }
  }
  // The tree of a lane sum, of two positions side by side.
  static Pair treeOfPairs(const float *lanes) {
    const auto sum = [&](unsigned a, unsigned b) {
      return load<Pair>(lanes + a * 4) + load<Pair>(lanes + b * 4);
    };
    return (sum(0, 4) + sum(2, 6)) + (sum(1, 5) + sum(3, 7));
  }
};

// Partial sums of the units of a part, each over the positions of its block, ascending from +0. A
// value is loaded and widened once for two heads.
class UnitValues : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> filled;
  poplar::Input<unsigned> layer;
  HalvesIn values;    // [nLayers][layerUnits][4][64][2]
  FloatsIn weights;   // [nBlocks][groupSize][64]
  FloatsOut partials; // [nUnits][groupSize][8]
  // The first unit is number `firstUnit` of its block, which begins at firstPosition.
  unsigned groupSize, layerUnits, nUnits, nBlocks, unitsPerBlock, firstUnit, firstPosition;

  bool compute(unsigned worker) {
    const unsigned heads = groupSize;
    unsigned h = 0, c = worker;
    for (; h + 2 <= heads; h += 2)
      ofHeads<2>(h, c);
    if (h != heads)
      ofHeads<1>(h, c);
    return true;
  }

private:
  // Pairs of components of all units are shared out, from c on.
  template <unsigned nHeads> void ofHeads(unsigned firstHead, unsigned &c) {
    constexpr unsigned perUnit = nLanes / pairSize, ofPair = blockSize * pairSize;
    const unsigned heads = groupSize, n = nUnits, perBlock = unitsPerBlock, held = *filled;
    const half *unit = &values[*layer * layerUnits * perUnit * ofPair];
    const float *weight = &weights[firstHead * blockSize];
    float *to = &partials[firstHead * nLanes];
    unsigned inBlock = firstUnit, first = firstPosition;
    for (unsigned u = 0; u != n;
         ++u, c -= perUnit, unit += perUnit * ofPair, to += heads * nLanes) {
      if (inBlock == perBlock) {
        inBlock = 0;
        first += blockSize;
        weight += heads * blockSize;
      }
      ++inBlock;
      for (; c < perUnit; c += numWorkers())
        sumPair<nHeads>(unit + c * ofPair, weight,
                        held > first ? minimum(held - first, blockSize) : 0, to + c * pairSize);
    }
  }

  template <unsigned nHeads>
  static void sumPair(const half *value, const float *weight, unsigned rows, float *to) {
    Pair sums[nHeads] = {};
    const auto add = [&](const Pair &two) {
      for (unsigned i = 0; i != nHeads; ++i)
        sums[i] += weight[i * blockSize] * two;
      ++weight;
    };
    for (unsigned left = rows / 2; left != 0; --left, value += quadSize)
      if (nHeads == 1) {
        const PairsOf<Quad> two = pairsOf(load<Quad>(value));
        add(two.of[0]), add(two.of[1]);
      } else { // else more would have to be in registers
        add(load<Pair>(value)), add(load<Pair>(value + pairSize));
      }
    if (rows % 2 != 0)
      add(load<Pair>(value));
    for (unsigned i = 0; i != nHeads; ++i)
      store(to + i * nLanes, sums[i]);
  }
};

// Folds the blocks of some units of the output, eight components of a head each, and finishes them.
class DenseOutput : public poplar::MultiVertex {
public:
  FloatsIn partials;                         // [nBlocks][n][8]
  FloatsIn sums;                             // [groupSize]
  HalvesOut output;                          // [n][8]
  unsigned n, nBlocks, groupSize, firstHead; // of the first unit; heads follow one another

  bool compute(unsigned worker) {
    const unsigned width = n * nLanes, blocks = nBlocks, heads = groupSize;
    for (unsigned c = worker * pairSize; c < width; c += numWorkers() * pairSize) {
      const float *partial = &partials[c];
      Pair sum{};
      for (unsigned left = blocks; left != 0; --left, partial += width)
        sum += load<Pair>(partial);
      unsigned head = firstHead + c / nLanes;
      while (head >= heads)
        head -= heads;
      storeNarrow(&output[c], flush(sum) / sums[head]);
    }
    return true;
  }
};

} // namespace sparq
