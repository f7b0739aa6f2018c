// SPDX-License-Identifier: Apache-2.0
//
// Which selected positions of a KV head are in its buffer of hot rows, and which rows are missing.
#include "hot_rows.hpp"

namespace sparq {

// A worker's entries of a list: those before `stop` are in use.
struct Share {
  unsigned begin, end, stop;
  Share(unsigned topK, unsigned filled, unsigned worker, unsigned nWorkers) {
    const unsigned each = (topK + nWorkers - 1) / nWorkers;
    begin = minimum(worker * each, topK);
    end = minimum(begin + each, topK);
    stop = minimum(end, filled);
    stop = stop < begin ? begin : stop;
  }
};

// Where the owner's ways have positions of the list: each worker some entries.
struct FindHot : poplar::MultiVertex {
  poplar::Input<unsigned> filled, layer;
  poplar::Input<unsigned> clock; // steps before this one
  WordsIn positions;             // [topK]
  WordsIn held;                  // [nLayers][nWays]
  WordsInOut stamps;             // [nLayers][nWays]: the step that last selected it
  WordsOut places;               // [topK]: of the owner's hits
  WordsOut nFound;               // [6]: how many, of each worker's entries
  unsigned topK, nWays, owner, nOwners;

  void compute(unsigned worker) {
    const Share own(topK, *filled, worker, numWorkers());
    const unsigned begin = own.begin, stop = own.stop;
    for (unsigned e = begin; e != own.end; ++e)
      places[e] = 0;
    nFound[worker] = 0;
    if (begin == stop)
      return;
    // Copies, for a stamp that is stored could be any of these.
    const unsigned ways = nWays, *const ownHeld = &held[*layer * ways];
    unsigned *const ownStamps = &stamps[*layer * ways];
    unsigned found = 0;
    const unsigned lowest = positions[begin], highest = positions[stop - 1];
    for (unsigned way = 0; way != ways; ++way) {
      const unsigned position = ownHeld[way] - 1; // of no position: too large
      if (position < lowest || position > highest)
        continue;
      unsigned first = begin, n = stop - begin; // the last entry that is not beyond it
      while (n > 1) {
        const unsigned step = n / 2;
        if (positions[first + step] <= position)
          first += step;
        n -= step;
      }
      if (positions[first] != position)
        continue;
      places[first] = way * nOwners + owner + 1;
      ownStamps[way] = *clock + 1;
      ++found;
    }
    nFound[worker] = found;
  }
};

// How many of its ways an owner may give away: all but its hits. Clears what it will deal, too.
struct FreeWays : poplar::MultiVertex {
  WordsIn nFound; // [6]
  poplar::Output<unsigned> nFree;
  WordsOut byEntry, byMiss; // [topK]: see DealPlaces
  unsigned nWays, topK;

  void compute(unsigned worker) {
    for (unsigned e = worker, end = topK; e < end; e += numWorkers()) {
      byEntry[e] = 0;
      byMiss[e] = 0;
    }
    if (worker != 0)
      return;
    unsigned n = nWays;
    for (unsigned w = 0; w != numWorkers(); ++w)
      n -= nFound[w];
    *nFree = n;
  }
};

// Hits of all owners, grouped by the worker that owns their entries.
struct SumFound : poplar::MultiVertex {
  WordsIn nFound; // [nOwners][6]
  WordsOut nHits; // [6]
  unsigned nOwners;

  void compute(unsigned worker) {
    unsigned n = 0;
    for (unsigned owner = 0; owner != nOwners; ++owner)
      n += nFound[owner * numWorkers() + worker];
    nHits[worker] = n;
  }
};

// Merges the places that owners found, or dealt, for some entries of the list. One owner has a
// place, the others 0.
struct MergePlaces : poplar::MultiVertex {
  WordsIn found;   // [nOwners][nEntries]
  WordsIn before;  // [nEntries]: what was known already
  WordsOut places; // [nEntries]
  unsigned nOwners, nEntries;

  void compute(unsigned worker) {
    // Copies, for a place that is stored could be any of these.
    const unsigned n = nEntries, owners = nOwners, *const ofOwners = &found[0];
    for (unsigned e = worker; e < n; e += numWorkers()) {
      const unsigned *at = ofOwners + e;
      unsigned place = before[e];
      const auto add = [&] {
        place |= *at;
        at += n;
      };
      for (unsigned left = owners / 4; left != 0; --left) // four to a pass
        add(), add(), add(), add();
      for (unsigned left = owners % 4; left != 0; --left)
        add();
      places[e] = place;
    }
  }
};

// The entries that are not hot, ascending: the misses of a KV head, the rows to fetch for them, and
// how many there are. Each worker has its entries.
struct ListMisses : poplar::MultiVertex {
  poplar::Input<unsigned> filled, layer;
  WordsIn positions; // [topK]
  WordsIn hits;      // [topK]: places
  WordsIn nHits;     // [6]: of each worker's entries
  WordsOut entries;  // [topK]
  WordsOut rows;     // [topK]: rows of streaming memory
  poplar::Output<unsigned> nMisses;
  unsigned topK, rowBase, layerRows;

  void compute(unsigned worker) {
    const unsigned base = rowBase + *layer * layerRows + 1;
    const Share own(topK, *filled, worker, numWorkers());
    // Entries in use of the workers before, but for their hits.
    unsigned miss = minimum(own.begin, *filled);
    for (unsigned w = 0; w != worker; ++w)
      miss -= nHits[w];
    for (unsigned e = own.begin; e != own.stop; ++e)
      if (hits[e] == 0) {
        entries[miss] = e;
        rows[miss] = base + positions[e];
        ++miss;
      }
    if (worker + 1 == numWorkers())
      *nMisses = miss;
  }
};

} // namespace sparq
