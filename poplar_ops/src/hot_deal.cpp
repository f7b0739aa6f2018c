// SPDX-License-Identifier: Apache-2.0
#include "codelets/hot_places.cycles.hpp"
#include "miss_waves.hpp"
#include "planning.hpp"

namespace sparq {

using namespace poplar;

Dealt dealPlaces(const HotLayout &l, const Found &found, const Misses &misses, MissWaves &waves) {
  const Context &context = l.context;
  const HotBuffer &buffer = l.buffer;
  const HotRows &hot = l.hot;
  const Dealt dealt{l.perEntry("hot_places", l.hitsFirst),
                    l.perEntry("miss_places", l.missesFirst)};
  const ComputeSet cs = waves.plan();
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned owner = 0; owner != hot.nOwners; ++owner)
      addVertex(l.graph, cs, "sparq::DealPlaces", context.tile(slot, owner),
                {{"layer", l.layer(slot, owner)},
                 {"clock", buffer.clock[context.task(slot)][owner]},
                 {"nMisses", waves.toFetch()[slot]},
                 {"positions", l.positions[slot]},
                 {"entries", misses.entries[slot]},
                 {"nFree", found.nFree[slot]},
                 {"order", misses.order[slot][owner]},
                 {"held", l.ofOwner(buffer.held, slot, owner)},
                 {"stamps", l.ofOwner(buffer.stamps, slot, owner)},
                 {"byEntry", found.byEntry[slot][owner]},
                 {"byMiss", found.byMiss[slot][owner]}},
                {{"nWays", hot.nWays()},
                 {"owner", owner},
                 {"nOwners", hot.nOwners},
                 {"ownersShift", log2Of(hot.nOwners)}},
                cycles::dealPlaces(l.topK, hot.nOwners));
  const ComputeSet merge = context.execute("merge_dealt");
  waves.addFirst(merge);
  l.addMerge(merge, found.byEntry, found.hits, dealt.places, l.hitsFirst);
  l.addMerge(merge, found.byMiss, l.noPlaces(l.missesFirst), dealt.missPlaces, l.missesFirst);
  return dealt;
}

Tensor makeHot(const Context &context, const HotBuffer &buffer, const Tensor &positions) {
  const HotLayout layout(context, buffer, positions);
  const Found found = findHot(layout);
  const Misses misses = listMisses(layout, found);
  MissWaves waves(layout, misses);
  const Dealt dealt = dealPlaces(layout, found, misses, waves);
  waves.fetch(dealt.missPlaces);
  return dealt.places;
}

} // namespace sparq
