// SPDX-License-Identifier: Apache-2.0
//
// SparQ: the `rank` components where the group's queries are largest, and the inverse
// temperature of each head (contract E4, E6.1).
//   a[c] = sum over the group of |q[h, c]|;  i1 = the largest r, equal values by lower index;
//   inv_tau[h] = sqrt(all / (d * selected))
#include "selected_components.hpp"

namespace sparq {

// a[c], components shared out over the workers. NaN and infinity, which are nobody's inputs, count as
// the largest number: numbers can be ranked, and `rank` of them are selected whatever comes in.
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
// components.
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
    if (worker != 0)
      list(ListedRange(&selected[0], headDim, rank, worker - 1, numWorkers() - 1));
    for (unsigned h = worker; h < groupSize; h += numWorkers())
      inverseTemperature[h] = sparq::inverseTemperature(
          magnitudeSums[h], selectedMagnitude(&query[h * headDim], &selected[0], headDim),
          static_cast<float>(headDim), scale);
    return true;
  }

private:
  void list(ListedRange range) {
    // Copies, for what is stored could be any of these.
    const unsigned heads = groupSize, ofHead = headDim,
                   ofSelected = rank, *const mask = &selected[0];
    unsigned index = range.index;
    for (unsigned c = range.first; c != range.end; ++c) {
      if (mask[c] == 0)
        continue;
      components[index] = c;
      for (unsigned h = 0; h != heads; ++h)
        selectedQuery[h * ofSelected + index] = static_cast<float>(query[h * ofHead + c]);
      ++index;
    }
  }
};

} // namespace sparq
