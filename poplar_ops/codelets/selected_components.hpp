// SPDX-License-Identifier: Apache-2.0
//
// What the masks of a query's components say (contract E6.1): which are selected, in ascending order, and how much of
// a head's magnitude these have. Shared by query_components.cpp and resident_components.cpp.
#pragma once

#include "lanes.hpp"

namespace sparq {

// Clears the sign of a number: the mask of a selected component, so that one AND gives its
// magnitude, or 0 where it is not selected.
static constexpr unsigned magnitudeMask = 0x7fffffffu;

// How many of the components [first, end), an even number, are selected. The sum of n masks is
// n * 2^31 - n, modulo 2^32.
inline unsigned countSelected(const unsigned *selected, unsigned first, unsigned end) {
  unsigned sum = 0;
  const unsigned *mask = selected + first;
  for (unsigned n = (end - first) / 2; n != 0; --n, mask += 2) // two to a pass
    sum += mask[0] + mask[1];
  return (0u - sum) & magnitudeMask;
}

// The components [first, end) of nComponents that worker `worker` of `nWorkers` lists, and the place of the first in the
// list: behind those of the workers before. It counts these, or, if there are fewer, its own and those after it.
struct ListedRange {
  unsigned first, end, index;

  ListedRange(const unsigned *selected, unsigned nComponents, unsigned rank, unsigned worker,
              unsigned nWorkers) {
    // Even, for pairs.
    const unsigned perWorker = ((nComponents + nWorkers - 1) / nWorkers + 1) / 2 * 2;
    first = minimum(worker * perWorker, nComponents);
    end = minimum(first + perWorker, nComponents);
    index = first <= nComponents - first ? countSelected(selected, 0, first)
                                         : rank - countSelected(selected, first, nComponents);
  }
};

// The sum of |query| over the selected components of one head, added up lane by lane.
inline float selectedMagnitude(const half *query, const unsigned *selected, unsigned nComponents) {
  Lanes kept{};
  for (unsigned c = 0; c != nComponents; c += nLanes) {
    Lanes mask;
    __builtin_memcpy(&mask, aligned<sizeof(mask)>(&selected[c]), sizeof(mask));
    kept += keepBits(loadLanes(&query[c]), mask);
  }
  return treeSum(kept);
}

} // namespace sparq
