// SPDX-License-Identifier: Apache-2.0
//
// SparQ over a key index in SRAM: the components of the query and the inverse temperature, as in
// query_components.cpp. There is no column to wait for, so this is a part of a step's time, and
// spread wider: a tile has a piece of the magnitudes, the list is made by all workers, and a
// temperature by a tile that makes no coefficients.
#include "lanes.hpp"

namespace sparq {

// As GroupMagnitude, of some components.
class PieceMagnitude : public poplar::MultiVertex {
public:
  HalvesIn query;       // [groupSize][headDim]
  FloatsOut magnitudes; // [n]: of the components from first on
  unsigned groupSize, headDim, first, n;

  bool compute(unsigned worker) {
    // Copies, for what is stored could be any of these.
    const unsigned heads = groupSize, ofHead = headDim, end = n;
    for (unsigned c = worker * quadSize; c < end; c += numWorkers() * quadSize) {
      const half *of = &query[first + c];
      Quad sum{};
      for (unsigned h = 0; h != heads; ++h, of += ofHead) // ascending by head
        sum += withoutSign(load<Quad>(of));
      store(&magnitudes[c], smaller(sum, Quad{} + highest));
    }
    return true;
  }
};

// From the masks: the components ascending, where each has its records, and each head's query along
// them. A worker lists a range of components, behind those of the workers before: it counts these,
// or, if there are fewer, its own and those after it. Beside it the length comes to this part.
class ListComponents : public poplar::MultiVertex {
public:
  poplar::Input<unsigned> length; // of the task
  poplar::Output<unsigned> filled;
  poplar::Input<unsigned> layer;
  HalvesIn query;          // [groupSize][headDim]
  WordsIn selected;        // [nComponents], 0 or 2^31 - 1
  WordsOut components;     // [rank]
  WordsOut columns;        // [rank]: where each component's records begin
  FloatsOut selectedQuery; // [groupSize][rank]
  // nComponents: those that the index has, the first ones.
  unsigned groupSize, headDim, nComponents, rank, columnWords;

  bool compute(unsigned worker) {
    if (worker == 0)
      *filled = *length;
    // Even, for pairs.
    const unsigned perWorker = ((nComponents + numWorkers() - 1) / numWorkers() + 1) / 2 * 2,
                   first = minimum(worker * perWorker, nComponents),
                   end = minimum(first + perWorker, nComponents);
    unsigned index =
        first <= nComponents - first ? count(0, first) : rank - count(first, nComponents);
    // Copies, for what is stored could be any of these.
    const unsigned heads = groupSize, ofHead = headDim, ofSelected = rank, ofColumn = columnWords,
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
    return (0u - sum) & 0x7fffffffu;
  }
};

// The inverse temperature of each head, heads shared out over the workers.
class HeadTemperatures : public poplar::MultiVertex {
public:
  HalvesIn query;               // [groupSize][headDim]
  WordsIn selected;             // [nComponents], 0 or 2^31 - 1
  FloatsIn magnitudeSums;       // [groupSize], of all components
  FloatsOut inverseTemperature; // [groupSize]
  // nComponents: those that the index has, the first ones.
  unsigned groupSize, headDim, nComponents;
  float scale; // 1 / sqrt(headDim)

  bool compute(unsigned worker) {
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
    return true;
  }
};

} // namespace sparq
