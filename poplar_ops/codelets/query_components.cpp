// SPDX-License-Identifier: Apache-2.0
//
// SparQ: the `rank` components where the group's queries are largest, and the inverse
// temperature of each head (contract E4, E6.1).
//   a[c] = sum over the group of |q[h, c]|;  i1 = the largest r, equal values by lower index;
//   inv_tau[h] = sqrt(all / (d * selected))
#include "lanes.hpp"

namespace sparq {

// Clears the sign of a number: the mask of a selected component, so that one AND gives its
// magnitude, or 0 where it is not selected.
static constexpr unsigned magnitudeMask = 0x7fffffffu;

// a[c], components shared out over the workers. NaN and infinity, which are nobody's inputs, count
// as the largest number: numbers can be ranked, and `rank` of them are selected whatever comes in.
class GroupMagnitude : public poplar::MultiVertex {
public:
  HalvesIn query;       // [groupSize][headDim]
  FloatsOut magnitudes; // [headDim]
  unsigned groupSize, headDim;

  bool compute(unsigned worker) {
    for (unsigned c = worker * nLanes; c < headDim; c += numWorkers() * nLanes) {
      Lanes sum{};
      for (unsigned h = 0; h != groupSize; ++h) // ascending by head
        sum += withoutSign(loadLanes(&query[h * headDim + c]));
      storeLanes(&magnitudes[c], smaller(sum, Lanes{} + highest));
    }
    return true;
  }
};

// Lane sum of |q| of each head, heads shared out over the workers (contract E4, `all`).
class MagnitudeSums : public poplar::MultiVertex {
public:
  HalvesIn query; // [groupSize][headDim]
  FloatsOut sums; // [groupSize]
  unsigned groupSize, headDim;

  bool compute(unsigned worker) {
    for (unsigned h = worker; h < groupSize; h += numWorkers()) {
      Lanes sum{};
      for (unsigned c = 0; c != headDim; c += nLanes)
        sum += withoutSign(loadLanes(&query[h * headDim + c]));
      sums[h] = treeSum(sum);
    }
    return true;
  }
};

// The mask of each of this tile's components: selected is one that is among the `rank` largest, so
// that fewer than `rank` components come before it.
class ComponentRanks : public poplar::MultiVertex {
public:
  FloatsIn magnitudes; // [headDim]
  WordsOut selected;   // [nComponents], 0 or magnitudeMask
  unsigned headDim, first, nComponents, rank;

  bool compute(unsigned worker) {
    for (unsigned i = worker; i < nComponents; i += numWorkers()) {
      const unsigned c = first + i;
      const float own = magnitudes[c];
      // Equal values: the lower index comes first. Counted in floats, which stay where they are
      // compared.
      const unsigned quad = c / quadSize * quadSize;
      const Quad one = Quad{} + 1.0f;
      Quad before{};
      const float *other = &magnitudes[0];
      for (unsigned n = c / quadSize; n != 0; --n, other += quadSize)
        before += zeroBelow(load<Quad>(other), own, one);
      for (unsigned n = headDim / quadSize - c / quadSize; n != 1; --n)
        before += zeroUpTo(load<Quad>(other += quadSize), own, one);
      float all = (before[0] + before[1]) + (before[2] + before[3]);
      for (unsigned other = quad; other != quad + quadSize; ++other)
        all += other < c ? zeroBelow(magnitudes[other], own, 1.0f)
                         : zeroUpTo(magnitudes[other], own, 1.0f);
      selected[i] = all < static_cast<float>(rank) ? magnitudeMask : 0u;
    }
    return true;
  }
};

// From the masks: the components ascending, each head's query along them, and its inverse
// temperature. Every worker but the first, which has the first head's sum, lists a range of
// components, behind those of the workers before: it counts these, or, if there are fewer, its own
// and those after it.
class ComponentList : public poplar::MultiVertex {
public:
  HalvesIn query;               // [groupSize][headDim]
  WordsIn selected;             // [headDim], 0 or magnitudeMask
  FloatsIn magnitudeSums;       // [groupSize], of all components
  WordsOut components;          // [rank]
  FloatsOut selectedQuery;      // [groupSize][rank]
  FloatsOut inverseTemperature; // [groupSize]
  unsigned groupSize, headDim, rank;
  float scale; // 1 / sqrt(headDim)

  bool compute(unsigned worker) {
    // Even, for pairs.
    const unsigned perWorker = ((headDim + numWorkers() - 2) / (numWorkers() - 1) + 1) / 2 * 2;
    const unsigned first = worker == 0 ? 0 : minimum((worker - 1) * perWorker, headDim);
    const unsigned end = worker == 0 ? 0 : minimum(first + perWorker, headDim);
    unsigned index = first <= headDim - first ? count(0, first) : rank - count(first, headDim);
    // Copies, for what is stored could be any of these.
    const unsigned heads = groupSize, ofHead = headDim,
                   ofSelected = rank, *const mask = &selected[0];
    for (unsigned c = first; c != end; ++c) {
      if (mask[c] == 0)
        continue;
      components[index] = c;
      for (unsigned h = 0; h != heads; ++h)
        selectedQuery[h * ofSelected + index] = static_cast<float>(query[h * ofHead + c]);
      ++index;
    }
    for (unsigned h = worker; h < groupSize; h += numWorkers()) {
      Lanes kept{};
      for (unsigned c = 0; c != headDim; c += nLanes) {
        Lanes mask;
        __builtin_memcpy(&mask, aligned<sizeof(mask)>(&selected[c]), sizeof(mask));
        kept += keepBits(loadLanes(&query[h * headDim + c]), mask);
      }
      inverseTemperature[h] = sparq::inverseTemperature(magnitudeSums[h], treeSum(kept),
                                                        static_cast<float>(headDim), scale);
    }
    return true;
  }

private:
  // How many of the components [first, end), an even number, are selected. The sum of n masks is
  // n * 2^31 - n, modulo 2^32.
  unsigned count(unsigned first, unsigned end) const {
    unsigned sum = 0;
    const unsigned *mask = &selected[first];
    for (unsigned n = (end - first) / 2; n != 0; --n, mask += 2) // two to a pass
      sum += mask[0] + mask[1];
    return (0u - sum) & magnitudeMask;
  }
};

} // namespace sparq
