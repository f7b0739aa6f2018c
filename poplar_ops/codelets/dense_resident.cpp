// SPDX-License-Identifier: Apache-2.0
//
// Dense attention over keys and values in SRAM (contract E3, E6.4), spread evenly over all tiles.
//
// Keys of two positions lie side by side, lane by lane of the lane sum: one instruction multiplies
// them by a component of two heads and adds the four products to four sums. Products of fp16 are
// exact, so a sum is rounded once for each. Lanes lie in the order in which their sums are added.
//
// Values are kept in units: two components of a block of 64 positions.
//
// T: of a number of keys and values, which are fp16; as float they take twice the room, and no
// instruction to be widened.
#include "code_products.hpp"

namespace sparq {

constexpr unsigned ofUnit = blockSize * pairSize;

// 0 4 2 6 1 5 3 7, as (ae + cg) + (bf + dh) takes them: few sums wait for others.
constexpr unsigned placeOfLane(unsigned lane) { return 0x73516240u >> lane * 4 & 7; }

// A number of a key into its pair of positions: behind the last position are zeros.
inline void keepNumber(half *pair, bool second, const half *from) {
  unsigned short bits;
  __builtin_memcpy(&bits, from, sizeof(bits));
  storeWord(pair, second ? (loadWord(pair) & 0xFFFFu) | unsigned(bits) << 16 : bits);
}
inline void keepNumber(float *pair, bool second, const half *from) {
  const float number = static_cast<float>(*from);
  store(pair, second ? Pair{pair[0], number} : Pair{number, 0.0f});
}
// Two numbers of a value.
inline void keepTwo(half *to, const half *from) { storeWord(to, loadWord(from)); }
inline void keepTwo(float *to, const half *from) { store(to, load<Pair>(from)); }

// A new key into the part that has its position.
template <class T> struct KeepKey : poplar::MultiVertex {
  poplar::Input<unsigned> filled; // its position
  poplar::Input<unsigned> active; // 0 or 1
  poplar::Input<unsigned> layer;
  HalvesIn row;                                      // [headDim]
  poplar::InOut<poplar::Vector<T, ONE_PTR, 8>> keys; // [nLayers][length / 2][headDim][2]
  unsigned headDim, length, firstPosition;

  void compute(unsigned worker) {
    const unsigned d = headDim, n = length, local = *filled - firstPosition; // wraps if before
    if (!*active || local >= n)
      return;
    const unsigned perLane = d / nLanes * pairSize;
    T *const to = &keys[(*layer * n + (local & ~1u)) * d];
    for (unsigned c = worker; c < d; c += numWorkers())
      keepNumber(to + placeOfLane(c % nLanes) * perLane + c / nLanes * pairSize, local % 2 != 0,
                 &row[c]);
  }
};

// The same of a value: a part may have some of its units.
template <class T> struct KeepValue : poplar::MultiVertex {
  poplar::Input<unsigned> filled, active, layer;
  HalvesIn row;                                        // [headDim]
  poplar::InOut<poplar::Vector<T, ONE_PTR, 8>> values; // [nLayers][nUnits][64][2]
  unsigned headDim, nUnits, firstUnit;

  void compute(unsigned worker) {
    if (!*active)
      return;
    const unsigned n = nUnits, perBlock = headDim / pairSize, position = *filled,
                   own = position / blockSize * perBlock - firstUnit;
    T *const to = &values[*layer * n * ofUnit + position % blockSize * pairSize];
    for (unsigned i = worker; i < perBlock; i += numWorkers())
      if (own + i < n) // wraps around if before
        keepTwo(to + (own + i) * ofUnit, &row[i * pairSize]);
  }
};

// The query of two heads side by side, lane by lane; beside the last one of an odd number zeros.
struct SpreadQuery : poplar::MultiVertex {
  HalvesIn query;   // [groupSize][headDim]
  FloatsOut spread; // [(groupSize + 1) / 2][headDim][2]
  unsigned groupSize, headDim;

  void compute(unsigned worker) {
    const unsigned d = headDim, perLane = d / nLanes * pairSize, heads = groupSize;
    unsigned c = worker * nLanes; // shared out over all heads
    for (unsigned h = 0; h < heads; h += 2, c -= d)
      for (; c < d; c += numWorkers() * nLanes) {
        const half *from = &query[h * d + c];
        float *const first = &spread[h * d + c / nLanes * pairSize];
        for (unsigned quad = 0; quad != 2; ++quad, from += quadSize) { // lanes 0 to 3, 4 to 7
          const Quad one = load<Quad>(from), other = h + 1 != heads ? load<Quad>(from + d) : Quad{};
          for (unsigned i = 0; i != quadSize; ++i)
            store(first + (placeOfLane(i) + quad) * perLane, Pair{one[i], other[i]});
        }
      }
  }
};

struct OfTwo { // heads
  Pair first, second;
  OfTwo operator+(const OfTwo &other) const { return {first + other.first, second + other.second}; }
};
inline Pair next(OuterSums &sums, Pair) { return sums.next(); } // what is left is 0
inline OfTwo next(OuterSums &sums, const OfTwo &) { return {sums.next(), sums.next()}; }

// Scores of the positions of a part, two of them at a time.
template <class T> struct PairScores : poplar::MultiVertex {
  poplar::Input<unsigned> filled, layer;
  poplar::Input<poplar::Vector<T, ONE_PTR, 8>> keys; // [nLayers][length / 2][headDim][2]
  FloatsIn spread;                                   // [(groupSize + 1) / 2][headDim][2]
  FloatsOut scores;                                  // [groupSize][length]
  unsigned groupSize, headDim, length, firstPosition;
  float scale;

  void compute(unsigned worker) {
    // Copies, for a score that is stored could be any of these.
    const unsigned n = *filled > firstPosition ? minimum(*filled - firstPosition, length) : 0,
                   d = headDim, heads = groupSize, ofHead = length;
    const T *const first = &keys[*layer * ofHead * d];
    const float *const query = &spread[0], times = scale;
    float *const to = &scores[0];
    OuterSums sums;
    for (unsigned p = worker * pairSize; p < n; p += numWorkers() * pairSize) {
      const T *const key = first + p * d;
      unsigned h = 0;
      for (; h + 2 <= heads; h += 2) {
        const OfTwo two = laneSum<OfTwo>(key, query + h * d, d / nLanes, sums);
        store(to + h * ofHead + p, two.first * times);
        store(to + (h + 1) * ofHead + p, two.second * times);
      }
      if (h != heads)
        store(to + h * ofHead + p, laneSum<Pair>(key, query + h * d, d / nLanes, sums) * times);
    }
  }

private:
  // The lane sums of two positions, of one head (a Pair) or of two.
  template <class V>
  __attribute__((always_inline)) static V laneSum(const T *keys, const float *query,
                                                  unsigned perLane, OuterSums &sums) {
    const auto lane = [&]() __attribute__((always_inline)) {
      addLane(keys, query, perLane, sums);
      return next(sums, V{});
    };
    const auto four = [&]() __attribute__((always_inline)) {
      const V a = lane(), ae = a + lane(), c = lane(), cg = c + lane();
      return ae + cg;
    };
    const V aecg = four();
    return aecg + four();
  }
  static void addLane(const T *&key, const float *&query, unsigned perLane, OuterSums &sums) {
    const auto add = [&](const Pair &positions) {
      sums.add(positions, load<Pair>(query));
      query += pairSize;
    };
    if (perLane % 2 == 0)
      for (unsigned left = perLane / 2; left != 0; --left, key += quadSize) {
        const PairsOf<Quad> two = pairsOf(load<Quad>(key));
        add(two.of[0]), add(two.of[1]);
      }
    else // lanes begin at words
      for (unsigned left = perLane; left != 0; --left, key += pairSize)
        add(load<Pair>(key));
  }
};

// Partial sums of the units of a part, each over the positions of its block, ascending from +0. A
// value is loaded, and widened if it is fp16, once for two heads.
template <class T> struct UnitValues : poplar::MultiVertex {
  poplar::Input<unsigned> filled, layer;
  poplar::Input<poplar::Vector<T, ONE_PTR, 8>> values; // [nLayers][layerUnits][64][2]
  FloatsIn weights;                                    // [nBlocks][groupSize][64]
  FloatsOut partials;                                  // [nUnits][groupSize][2]
  // The first unit is number `firstUnit` of its block, which begins at firstPosition.
  unsigned groupSize, layerUnits, nUnits, nBlocks, unitsPerBlock, firstUnit, firstPosition;
  unsigned ofTwo, ofOne; // units of a worker, for two heads and for one

  void compute(unsigned worker) {
    const unsigned even = groupSize / 2 * 2;
    ofHeads<2>(worker * ofTwo, ofTwo, 0, even);
    ofHeads<1>(worker * ofOne, ofOne, even, groupSize);
  }

private:
  // A run of n units, of the heads one after another.
  template <unsigned nHeads> void ofHeads(unsigned first, unsigned n, unsigned h, unsigned end) {
    const unsigned all = nUnits;
    for (; h != end && n != 0; h += nHeads) {
      if (first >= all) {
        first -= all;
        continue;
      }
      const unsigned here = minimum(n, all - first);
      ofRun<nHeads>(first, here, h);
      first = 0;
      n -= here;
    }
  }
  template <unsigned nHeads> void ofRun(unsigned unit, unsigned n, unsigned head) {
    const unsigned heads = groupSize, perBlock = unitsPerBlock, held = *filled;
    const T *value = &values[(*layer * layerUnits + unit) * ofUnit];
    const float *weight = &weights[head * blockSize];
    float *to = &partials[(unit * heads + head) * pairSize];
    unsigned first = firstPosition;
    for (unit += firstUnit; n != 0; first += blockSize, weight += heads * blockSize) {
      if (unit >= perBlock) {
        unit -= perBlock;
        continue;
      }
      const unsigned here = minimum(n, perBlock - unit),
                     rows = held > first ? minimum(held - first, blockSize) : 0;
      for (unsigned left = here; left != 0; --left, value += ofUnit, to += heads * pairSize)
        sumUnit<nHeads>(value, weight, rows, to);
      n -= here;
      unit = 0;
    }
  }

  template <unsigned nHeads>
  static void sumUnit(const T *value, const float *weight, unsigned rows, float *to) {
    Pair sums[nHeads] = {};
    const auto add = [&](const Pair &two) {
      for (unsigned i = 0; i != nHeads; ++i)
        sums[i] += weight[i * blockSize] * two;
      ++weight;
    };
    for (unsigned left = rows / 2; left != 0; --left, value += quadSize)
      if (nHeads == 1) {
        const PairsOf<Quad> two = pairsOf(load<Quad>(value));
        const Pair ofTwo = load<Pair>(weight);
        sums[0] += ofTwo[0] * two.of[0];
        sums[0] += ofTwo[1] * two.of[1];
        weight += pairSize;
      } else { // else more would have to be in registers
        add(load<Pair>(value)), add(load<Pair>(value + pairSize));
      }
    if (rows % 2 != 0)
      add(load<Pair>(value));
    for (unsigned i = 0; i != nHeads; ++i)
      store(to + i * pairSize, sums[i]);
  }
};

// Folds the blocks of some units of the output, two components of a head each, and finishes them.
struct DenseOutput : poplar::MultiVertex {
  FloatsIn partials;                         // [n][nBlocks][2]
  FloatsIn sums;                             // [groupSize] of weights
  HalvesOut output;                          // [n][2]
  unsigned n, nBlocks, groupSize, firstHead; // of the first unit; heads follow one another

  void compute(unsigned worker) {
    const unsigned nUnits = n, blocks = nBlocks, heads = groupSize;
    for (unsigned unit = worker; unit < nUnits; unit += numWorkers()) {
      unsigned head = firstHead + unit;
      while (head >= heads)
        head -= heads;
      const float *partial = &partials[unit * blocks * pairSize];
      Pair sum{};
      for (unsigned left = blocks / 2; left != 0; --left, partial += 2 * pairSize) {
        sum += load<Pair>(partial);
        sum += load<Pair>(partial + pairSize);
      }
      if (blocks % 2 != 0)
        sum += load<Pair>(partial);
      storeNarrow(&output[unit * pairSize], flush(sum) / sums[head]);
    }
  }
};

template struct KeepKey<half>;
template struct KeepKey<float>;
template struct KeepValue<half>;
template struct KeepValue<float>;
template struct PairScores<half>;
template struct PairScores<float>;
template struct UnitValues<half>;
template struct UnitValues<float>;

} // namespace sparq
