// SPDX-License-Identifier: Apache-2.0
//
// Brings the selected positions into the buffer of hot rows, in three steps: hot_find.cpp finds the
// positions that are there and lists the others (misses), hot_deal.cpp deals places of the buffer
// to misses, and miss_waves.cpp fetches their rows from streaming memory. A place is written plus
// 1; 0 means none.
#pragma once

#include "stores/hot_buffer.hpp"

namespace sparq {

// Where lists of selected positions and the data of owners are on chip, in one round.
class HotLayout {
public:
  HotLayout(const Context &context, const HotBuffer &buffer, const poplar::Tensor &positions);

  const Context &context;
  poplar::Graph &graph;
  const Placement &p;
  const HotRows &hot;
  const HotBuffer &buffer;
  const poplar::Tensor positions; // {slots, topK}
  const unsigned topK;
  // A list is cut into nPieces pieces of pieceLength entries. Those of hits are on the parts from
  // hitsFirst on, those of misses from missesFirst on: apart from each other and from the owners
  // where there are enough parts.
  const unsigned pieceLength, nPieces, hitsFirst, missesFirst;
  const unsigned home; // the last part of a slot, which has less to do than the first ones

  // {slots, nOwners, shape...} UNSIGNED_INT, each on its owner.
  poplar::Tensor perOwner(const std::vector<std::size_t> &shape, const char *name) const;
  // {slots, topK} UNSIGNED_INT, pieces on the parts from firstPart on.
  poplar::Tensor perEntry(const char *name, unsigned firstPart) const;
  // {slots, shape...} UNSIGNED_INT on one part of each slot.
  poplar::Tensor onPart(unsigned part, const std::vector<std::size_t> &shape,
                        const char *name) const;
  poplar::Tensor atHome(const std::vector<std::size_t> &shape, const char *name) const {
    return onPart(home, shape, name);
  }
  poplar::Tensor layer(unsigned slot, unsigned part) const {
    return context.cache.layer[slot][part];
  }
  // {nLayers * nWays}: what an owner keeps of the slot's task.
  poplar::Tensor ofOwner(const poplar::Tensor &t, unsigned slot, unsigned owner) const {
    return t[context.task(slot)][owner].flatten();
  }
  // Adds vertices that merge the places that owners found {slots, nOwners, topK} with those known
  // before, into `merged`.
  void addMerge(const poplar::ComputeSet &cs, const poplar::Tensor &found,
                const poplar::Tensor &before, const poplar::Tensor &merged,
                unsigned firstPart) const;
  // {slots, topK}: zeros.
  poplar::Tensor noPlaces(unsigned firstPart) const;

private:
  void mapEntries(const poplar::Tensor &t, unsigned firstPart) const;
  // Calls use(i, first, end) for piece i of a list, the entries [first, end).
  template <class Use> void forEachPiece(const Use &use) const {
    for (unsigned first = 0, i = 0; first < topK; first += pieceLength, ++i)
      use(i, first, std::min(first + pieceLength, topK));
  }
};

struct Found {
  poplar::Tensor hits;            // {slots, topK}: places of the entries that are hot
  poplar::Tensor nHits;           // {slots, workers}
  poplar::Tensor nFree;           // {slots, nOwners}: ways that no selected position holds
  poplar::Tensor byEntry, byMiss; // {slots, nOwners, topK}: zeros, for deal
};
Found findHot(const HotLayout &layout);

struct Misses {
  poplar::Tensor entries, rows; // {slots, topK}: the first n are used; rows are written plus 1
  poplar::Tensor n;             // {slots}
  poplar::Tensor order;         // {slots, nOwners, nWays}: in which owners give up their ways
};
Misses listMisses(const HotLayout &layout, const Found &found);

class MissWaves;
struct Dealt {
  poplar::Tensor places;     // {slots, topK}: of all entries
  poplar::Tensor missPlaces; // {slots, topK}: of misses, by number
};
// Plans the waves beside.
Dealt dealPlaces(const HotLayout &layout, const Found &found, const Misses &misses,
                 MissWaves &waves);

// All of it: places {slots, topK} of the selected positions {slots, topK}.
poplar::Tensor makeHot(const Context &context, const HotBuffer &buffer,
                       const poplar::Tensor &positions);

} // namespace sparq
