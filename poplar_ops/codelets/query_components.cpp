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

// All ones for each of this tile's components that is among the `rank` largest: fewer than `rank`
// components come before it.
class ComponentRanks : public poplar::MultiVertex {
public:
  FloatsIn magnitudes; // [headDim]
  WordsOut selected;   // [nComponents], 0 or ~0
  unsigned headDim, first, nComponents, rank;

  bool compute(unsigned worker) {
    for (unsigned i = worker; i < nComponents; i += numWorkers()) {
      const unsigned c = first + i;
      const float own = magnitudes[c];
      // Equal values: the lower index comes first. A comparison of vectors gives -1 where it holds.
      const unsigned quad = c / quadSize * quadSize;
      QuadBits before{};
      for (unsigned other = 0; other != quad; other += quadSize)
        before -= bitcast<QuadBits>(load<Quad>(&magnitudes[other]) >= own);
      for (unsigned other = quad + quadSize; other < headDim; other += quadSize)
        before -= bitcast<QuadBits>(load<Quad>(&magnitudes[other]) > own);
      for (unsigned j = 0; j != quadSize; ++j) {
        const float a = magnitudes[quad + j];
        before[j] += quad + j < c ? a >= own : a > own;
      }
      selected[i] = before[0] + before[1] + before[2] + before[3] < rank ? ~0u : 0u;
    }
    return true;
  }
};

// From the masks: the components ascending, each head's query along them, and its inverse
// temperature. Every worker but the first, which has the first head's sums, lists a range of
// components, behind those of the workers before.
class ComponentList : public poplar::MultiVertex {
public:
  HalvesIn query;               // [groupSize][headDim]
  WordsIn selected;             // [headDim], 0 or ~0
  WordsOut components;          // [rank]
  FloatsOut selectedQuery;      // [groupSize][rank]
  FloatsOut inverseTemperature; // [groupSize]
  unsigned groupSize, headDim, rank;
  float scale; // 1 / sqrt(headDim)

  bool compute(unsigned worker) {
    const unsigned perWorker = (headDim + numWorkers() - 2) / (numWorkers() - 1);
    const unsigned first = worker == 0 ? 0 : minimum((worker - 1) * perWorker, headDim);
    const unsigned end = worker == 0 ? 0 : minimum(first + perWorker, headDim);
    unsigned index = 0;
    for (unsigned c = 0; c != first; ++c)
      index -= selected[c]; // ~0 is -1
    for (unsigned c = first; c != end; ++c) {
      if (selected[c] == 0)
        continue;
      components[index] = c;
      for (unsigned h = 0; h != groupSize; ++h)
        selectedQuery[h * rank + index] = static_cast<float>(query[h * headDim + c]);
      ++index;
    }
    for (unsigned h = worker; h < groupSize; h += numWorkers()) {
      Lanes all{}, kept{};
      for (unsigned c = 0; c != headDim; c += nLanes) {
        const LaneBits bits = bitcast<LaneBits>(loadLanes(&query[h * headDim + c])) & 0x7fffffffu;
        LaneBits mask;
        __builtin_memcpy(&mask, &selected[c], sizeof(mask));
        all += bitcast<Lanes>(bits);
        kept += bitcast<Lanes>(bits & mask);
      }
      inverseTemperature[h] = sparq::inverseTemperature(treeSum(all), treeSum(kept),
                                                        static_cast<float>(headDim), scale);
    }
    return true;
  }
};

} // namespace sparq
