// SPDX-License-Identifier: Apache-2.0
//
// Which places of the buffer of hot rows the missing rows take, and a row that is appended.
#include "hot_rows.hpp"

namespace sparq {

// The way of an owner that was selected least recently; of equal stamps, the first.
static inline unsigned leastRecent(const unsigned *stamps, unsigned nWays) {
  unsigned best = 0, least = ~0u, way = 0;
  const auto take = [&](unsigned stamp) {
    if (stamp < least) {
      best = way;
      least = stamp;
    }
    ++way;
  };
  while (way + 4 <= nWays) // four to a pass, which has a price of its own
    take(stamps[way]), take(stamps[way]), take(stamps[way]), take(stamps[way]);
  while (way != nWays)
    take(stamps[way]);
  return best;
}

// The ways of an owner in the order in which misses take them: by stamp, then by number. Ways that
// are selected now come last, for their stamps are the highest. Each worker ranks some of the ways.
struct RankWays : poplar::MultiVertex {
  poplar::Input<unsigned> layer;
  WordsIn stamps; // [nLayers][nWays]
  WordsOut order; // [nWays]
  unsigned nWays;

  void compute(unsigned worker) {
    const unsigned n = nWays, *const ownStamps = &stamps[*layer * nWays];
    for (unsigned way = worker; way < n; way += numWorkers()) {
      const unsigned stamp = ownStamps[way];
      unsigned larger = 0, smaller = 0; // stamps of the ways before it, and of those behind it
      for (unsigned other = 0; other != way; ++other)
        larger += ownStamps[other] > stamp;
      for (unsigned other = way; other != n; ++other)
        smaller += ownStamps[other] < stamp;
      order[way - larger + smaller] = way;
    }
  }
};

// Places of an owner for the misses that are dealt to it.
struct DealPlaces : poplar::Vertex {
  poplar::Input<unsigned> layer;
  poplar::InOut<unsigned> clock;
  poplar::Input<unsigned> nMisses;
  WordsIn positions;  // [topK]
  WordsIn entries;    // [topK]: of misses
  WordsIn nFree;      // [nOwners]
  WordsIn order;      // [nWays], see RankWays
  WordsInOut held;    // [nLayers][nWays]
  WordsInOut stamps;  // [nLayers][nWays]
  WordsInOut byEntry; // [topK]: places of own misses, by entry
  WordsInOut byMiss;  // [topK]: the same, by number of the miss
  unsigned nWays, owner, nOwners, ownersShift;

  void compute() {
    const unsigned now = *clock + 1;
    *clock = now;
    // Each owner takes an even share, or all that it has room for. Where that is too little for all
    // misses the share grows.
    unsigned share = (*nMisses + nOwners - 1) >> ownersShift, first = 0;
    while (!isEnough(share, now, first))
      ++share;
    const unsigned end = minimum(first + minimum(nFree[owner], share), *nMisses);
    unsigned *ownHeld = &held[*layer * nWays], *ownStamps = &stamps[*layer * nWays];
    const unsigned *next = &order[0];
    for (unsigned miss = first; miss < end; ++miss) {
      const unsigned way = *next++, e = entries[miss];
      ownHeld[way] = positions[e] + 1;
      ownStamps[way] = now;
      const unsigned place = (way << ownersShift) + owner + 1;
      byEntry[e] = place;
      byMiss[miss] = place;
    }
  }

private:
  // Whether all misses find a place; and how many go to the owners before this one.
  bool isEnough(unsigned share, unsigned now, unsigned &first) const {
    const unsigned start = now & (nOwners - 1), nBefore = (owner - now) & (nOwners - 1);
    first = inTurn(start, nBefore, share);
    return first + inTurn(owner, nOwners - nBefore, share) >= *nMisses;
  }
  // What n owners take, from `begin` on and around.
  unsigned inTurn(unsigned begin, unsigned n, unsigned share) const {
    const unsigned end = minimum(begin + n, nOwners);
    return inOrder(begin, end, share) + inOrder(0, begin + n - end, share);
  }
  unsigned inOrder(unsigned begin, unsigned end, unsigned share) const {
    unsigned sum = 0, count = end > begin ? end - begin : 0;
    const unsigned *free = &nFree[begin];
    for (unsigned n = count / 2; n != 0;
         --n, free += 2) // two to a pass, which may have a price of its own
      sum += minimum(free[0], share) + minimum(free[1], share);
    return count % 2 != 0 ? sum + minimum(*free, share) : sum;
  }
};

// The place of an appended position: owners take them in rotation.
struct DealNewest : poplar::Vertex {
  poplar::Input<unsigned> filled; // before the position
  poplar::Input<unsigned> active, layer, clock;
  WordsInOut held;   // [nLayers][nWays]
  WordsInOut stamps; // [nLayers][nWays]
  poplar::Output<unsigned> place;
  unsigned nWays, owner, nOwners;

  void compute() {
    *place = 0;
    if (!*active || (*filled & (nOwners - 1)) != owner)
      return;
    unsigned *ownHeld = &held[*layer * nWays], *ownStamps = &stamps[*layer * nWays];
    const unsigned way = leastRecent(ownStamps, nWays);
    ownHeld[way] = *filled + 1;
    ownStamps[way] = *clock;
    *place = way * nOwners + owner + 1;
  }
};

// Nothing is hot any more, of a layer.
struct ForgetHot : poplar::MultiVertex {
  poplar::Input<unsigned> layer;
  WordsInOut held;   // [nLayers][nWays]
  WordsInOut stamps; // [nLayers][nWays]
  unsigned nWays;

  void compute(unsigned worker) {
    unsigned *const ownHeld = &held[*layer * nWays], *const ownStamps = &stamps[*layer * nWays];
    for (unsigned way = worker, ways = nWays; way < ways; way += numWorkers()) {
      ownHeld[way] = 0;
      ownStamps[way] = 0;
    }
  }
};

} // namespace sparq
