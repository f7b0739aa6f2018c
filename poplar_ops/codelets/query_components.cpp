// SPDX-License-Identifier: Apache-2.0
//
// Step 1 of SparQ: the `rank` components where the group's queries are largest, and the inverse
// temperature of each head (contract E4, E6.1).
//   a[c] = sum over the group of |q[h, c]|;  i1 = the largest r, equal values by lower index;
//   inv_tau[h] = sqrt(all / (d * selected))
#include "lanes.hpp"

namespace sparq {

// a[c], components shared out over the workers.
class GroupMagnitude : public poplar::MultiVertex {
public:
  HalvesIn query;       // [groupSize][headDim]
  FloatsOut magnitudes; // [headDim]
  unsigned groupSize, headDim;

  bool compute(unsigned worker) {
    for (unsigned c = worker * nLanes; c < headDim; c += numWorkers() * nLanes) {
      Lanes sum{};
      for (unsigned h = 0; h != groupSize; ++h) { // ascending by head
        const Lanes q = loadLanes(&query[h * headDim + c]);
        sum += bitcast<Lanes>(bitcast<LaneBits>(q) & 0x7fffffffu);
      }
      storeLanes(&magnitudes[c], sum);
    }
    return true;
  }
};

// 1 for each of this tile's components that is among the `rank` largest: fewer than `rank`
// components come before it.
class ComponentRanks : public poplar::MultiVertex {
public:
  FloatsIn magnitudes; // [headDim]
  WordsOut selected;   // [nComponents], 0 or 1
  unsigned headDim, first, nComponents, rank;

  bool compute(unsigned worker) {
    for (unsigned i = worker; i < nComponents; i += numWorkers()) {
      const unsigned c = first + i;
      const float own = magnitudes[c];
      unsigned before = 0;
      for (unsigned other = 0; other != headDim; ++other) {
        const float a = magnitudes[other];
        before += (a > own) || (a == own && other < c);
      }
      selected[i] = before < rank;
    }
    return true;
  }
};

// From the flags: the components ascending, each head's query along them, and its inverse
// temperature.
class ComponentList : public poplar::MultiVertex {
public:
  HalvesIn query;               // [groupSize][headDim]
  WordsIn selected;             // [headDim], 0 or 1
  WordsOut components;          // [rank]
  FloatsOut selectedQuery;      // [groupSize][rank]
  FloatsOut inverseTemperature; // [groupSize]
  unsigned groupSize, headDim, rank;
  float scale; // 1 / sqrt(headDim)

  bool compute(unsigned worker) {
    if (worker == numWorkers() - 1) {
      for (unsigned c = 0, j = 0; c != headDim; ++c)
        if (selected[c])
          components[j++] = c;
    }
    for (unsigned h = worker; h < groupSize; h += numWorkers()) {
      const half *q = &query[h * headDim];
      for (unsigned c = 0, j = 0; c != headDim; ++c)
        if (selected[c])
          selectedQuery[h * rank + j++] = static_cast<float>(q[c]);
      Lanes all{}, kept{};
      for (unsigned c = 0; c != headDim; c += nLanes) {
        for (unsigned lane = 0; lane != nLanes; ++lane) {
          const float a = magnitude(static_cast<float>(q[c + lane]));
          all[lane] += a;
          kept[lane] += selected[c + lane] ? a : 0.0f;
        }
      }
      inverseTemperature[h] = sparq::inverseTemperature(treeSum(all), treeSum(kept),
                                                        static_cast<float>(headDim), scale);
    }
    return true;
  }
};

} // namespace sparq
