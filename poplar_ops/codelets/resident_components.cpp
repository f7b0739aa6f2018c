// SPDX-License-Identifier: Apache-2.0
//
// SparQ over a key index in SRAM: the components of the query and the inverse temperature, as in
// query_components.cpp. There is no column to wait for, so this is a part of a step's time, and spread wider: a tile
// has a piece of the magnitudes, the list is made by all workers, and a temperature by a tile that makes no
// coefficients.
#include "selected_components.hpp"

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

// From the masks: the components ascending, where each has its records, and each head's query along them. Beside
// it the length comes to this part.
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
    const ListedRange range(&selected[0], nComponents, rank, worker, numWorkers());
    // Copies, for what is stored could be any of these.
    const unsigned heads = groupSize, ofHead = headDim, ofSelected = rank, ofColumn = columnWords,
                   base = *layer * nComponents, *const mask = &selected[0];
    unsigned index = range.index;
    for (unsigned c = range.first; c != range.end; ++c) {
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
    for (unsigned h = worker; h < groupSize; h += numWorkers())
      inverseTemperature[h] = sparq::inverseTemperature(
          magnitudeSums[h], selectedMagnitude(&query[h * headDim], &selected[0], nComponents),
          static_cast<float>(headDim), scale);
    return true;
  }
};

} // namespace sparq
