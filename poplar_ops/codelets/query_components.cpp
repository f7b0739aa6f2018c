// SPDX-License-Identifier: Apache-2.0
//
// SparQ: the `rank` components where the group's queries are largest, and the inverse
// temperature of each head (contract E4, E6.1). A tile has a piece of the magnitudes, and all tiles
// make the list.
//   a[c] = sum over the group of |q[h, c]|;  i1 = the largest r, equal values by lower index;
//   inv_tau[h] = sqrt(all / (d * selected))
#include "lanes.hpp"

namespace sparq {

// Clears the sign of a number: the mask of a selected component, so that one AND gives its
// magnitude, or 0 where it is not selected.
static constexpr unsigned magnitudeMask = 0x7fffffffu;

// a[c] of some components. NaN and infinity, which are nobody's inputs, count as the largest
// number: numbers can be ranked, and `rank` of them are selected whatever comes in.
struct PieceMagnitude : poplar::MultiVertex {
  HalvesIn query;       // [groupSize][headDim]
  FloatsOut magnitudes; // [n]: of the components from first on
  unsigned groupSize, headDim, first, n;

  void compute(unsigned worker) {
    // Copies, for what is stored could be any of these.
    const unsigned heads = groupSize, ofHead = headDim, end = n;
    for (unsigned c = worker * quadSize; c < end; c += numWorkers() * quadSize) {
      const half *of = &query[first + c];
      Quad sum{};
      for (unsigned h = 0; h != heads; ++h, of += ofHead) // ascending by head
        sum += withoutSign(load<Quad>(of));
      store(&magnitudes[c], smaller(sum, Quad{} + highest));
    }
  }
};

// Lane sum of |q| of each head, heads shared out over the workers (contract E4, `all`).
struct MagnitudeSums : poplar::MultiVertex {
  HalvesIn query; // [groupSize][headDim]
  FloatsOut sums; // [groupSize]
  unsigned groupSize, headDim;

  void compute(unsigned worker) {
    for (unsigned h = worker; h < groupSize; h += numWorkers()) {
      Lanes sum{};
      for (unsigned c = 0; c != headDim; c += nLanes)
        sum += withoutSign(loadLanes(&query[h * headDim + c]));
      sums[h] = treeSum(sum);
    }
  }
};

// The mask of each of this tile's components: selected is one that is among the `rank` largest, so
// that fewer than `rank` components come before it.
struct ComponentRanks : poplar::MultiVertex {
  FloatsIn magnitudes; // [headDim]
  WordsOut selected;   // [nComponents], 0 or magnitudeMask
  unsigned headDim, first, nComponents, rank;

  void compute(unsigned worker) {
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
  }
};

// From the masks: the components ascending, where each has its columns, and each head's query along
// them. A worker lists a range of components, behind those of the workers before: it counts these,
// or, if there are fewer, its own and those after it. Beside it the length comes to this part.
struct ListComponents : poplar::MultiVertex {
  poplar::Input<unsigned> length; // of the task
  poplar::Output<unsigned> filled;
  poplar::Input<unsigned> layer;
  HalvesIn query;          // [groupSize][headDim]
  WordsIn selected;        // [nComponents], 0 or magnitudeMask
  WordsOut components;     // [rank]
  WordsOut columns;        // [rank]: where each component's columns begin
  FloatsOut selectedQuery; // [groupSize][rank]
  // nComponents: those that the index has, the first ones. columnStep: from one to the next.
  unsigned groupSize, headDim, nComponents, rank, columnStep;

  void compute(unsigned worker) {
    if (worker == 0)
      *filled = *length;
    // Even, for pairs.
    const unsigned perWorker = ((nComponents + numWorkers() - 1) / numWorkers() + 1) / 2 * 2,
                   first = minimum(worker * perWorker, nComponents),
                   end = minimum(first + perWorker, nComponents);
    unsigned index =
        first <= nComponents - first ? count(0, first) : rank - count(first, nComponents);
    // Copies, for what is stored could be any of these.
    const unsigned heads = groupSize, ofHead = headDim, ofSelected = rank, ofColumn = columnStep,
                   base = *layer * nComponents, *const mask = &selected[0];
    for (unsigned c = first; c != end; ++c) {
      if (mask[c] == 0)
        continue;
      components[index] = c;
      columns[index] = (base + c) * ofColumn;
      for (unsigned h = 0; h != heads; ++h)
        selectedQuery[h * ofSelected + index] = static_cast<float>(query[h * ofHead + c]);
      ++index;
    }
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

// The inverse temperature of each head, heads shared out over the workers.
struct HeadTemperatures : poplar::MultiVertex {
  HalvesIn query;               // [groupSize][headDim]
  WordsIn selected;             // [nComponents], 0 or magnitudeMask
  FloatsIn magnitudeSums;       // [groupSize], of all components
  FloatsOut inverseTemperature; // [groupSize]
  // nComponents: those that the index has, the first ones.
  unsigned groupSize, headDim, nComponents;
  float scale; // 1 / sqrt(headDim)

  void compute(unsigned worker) {
    for (unsigned h = worker; h < groupSize; h += numWorkers()) {
      Lanes kept{};
      for (unsigned c = 0; c != nComponents; c += nLanes) {
        Lanes mask;
        __builtin_memcpy(&mask, aligned<sizeof(mask)>(&selected[c]), sizeof(mask));
        kept += keepBits(loadLanes(&query[h * headDim + c]), mask);
      }
      inverseTemperature[h] = sparq::inverseTemperature(magnitudeSums[h], treeSum(kept),
                                                        static_cast<float>(headDim), scale);
    }
  }
};

} // namespace sparq
