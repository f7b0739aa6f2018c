// SPDX-License-Identifier: Apache-2.0
#include "codelets/cycles.hpp"
#include "codelets/hot_find.cycles.hpp"
#include "codelets/hot_places.cycles.hpp"
#include "hot_rows.hpp"
#include "planning.hpp"

namespace sparq {

using namespace poplar;

HotLayout::HotLayout(const Context &contextIn, const HotBuffer &bufferIn, const Tensor &positionsIn)
    : context(contextIn), graph(contextIn.graph), p(contextIn.placement()),
      hot(contextIn.plan().hot), buffer(bufferIn), positions(positionsIn),
      topK(static_cast<unsigned>(positionsIn.dim(1))),
      pieceLength(entriesPerPart(contextIn.plan(), topK)), nPieces(ceilDiv(topK, pieceLength)),
      hitsFirst(hot.nOwners + nPieces <= p.parts ? hot.nOwners : 0),
      missesFirst(hitsFirst + 2 * nPieces <= p.parts ? hitsFirst + nPieces : hitsFirst),
      home(p.parts - 1) {}

Tensor HotLayout::perOwner(const std::vector<std::size_t> &shape, const char *name) const {
  return context.once(name, [&] {
    return addPerPart(graph, p, UNSIGNED_INT, hot.nOwners, shape, {context.dc, name});
  });
}

void HotLayout::mapEntries(const Tensor &t, unsigned firstPart) const {
  for (unsigned slot = 0; slot != p.slots; ++slot)
    forEachPiece([&](unsigned i, unsigned first, unsigned end) {
      graph.setTileMapping(t[slot].slice(first, end), p.tile(slot, firstPart + i));
    });
}

Tensor HotLayout::perEntry(const char *name, unsigned firstPart) const {
  return context.once(name, [&] {
    const Tensor t = graph.addVariable(UNSIGNED_INT, {p.slots, topK}, {context.dc, name});
    mapEntries(t, firstPart);
    return t;
  });
}

Tensor HotLayout::onPart(unsigned part, const std::vector<std::size_t> &shape,
                         const char *name) const {
  return context.once(name, [&] {
    std::vector<std::size_t> full{p.slots};
    full.insert(full.end(), shape.begin(), shape.end());
    const Tensor t = graph.addVariable(UNSIGNED_INT, full, {context.dc, name});
    for (unsigned slot = 0; slot != p.slots; ++slot)
      graph.setTileMapping(t[slot], p.tile(slot, part));
    return t;
  });
}

void HotLayout::addMerge(const ComputeSet &cs, const Tensor &found, const Tensor &before,
                         const Tensor &merged, unsigned firstPart) const {
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    forEachPiece([&](unsigned i, unsigned first, unsigned end) {
      addVertex(graph, cs, "sparq::MergePlaces", context.tile(slot, firstPart + i),
                {{"found", found[slot].slice(first, end, 1).flatten()},
                 {"before", before[slot].slice(first, end)},
                 {"places", merged[slot].slice(first, end)}},
                {{"nOwners", hot.nOwners}, {"nEntries", end - first}},
                cycles::mergePlaces(end - first, hot.nOwners));
    });
}

Tensor HotLayout::noPlaces(unsigned firstPart) const {
  const std::string name = "no_places_" + std::to_string(firstPart);
  return context.once(name, [&] {
    const Tensor zero = graph.addConstant(UNSIGNED_INT, {p.slots, topK}, 0u, {context.dc, name});
    mapEntries(zero, firstPart);
    return zero;
  });
}

Found findHot(const HotLayout &l) {
  const Context &context = l.context;
  const HotBuffer &buffer = l.buffer;
  const HotRows &hot = l.hot;
  const unsigned topK = l.topK;
  const Tensor found = l.perOwner({topK}, "hot_found"),
               nFound = l.perOwner({cycles::nWorkers}, "n_found");
  Found all;
  all.hits = l.perEntry("hot_hits", l.hitsFirst);
  all.nHits = l.atHome({cycles::nWorkers}, "n_hits");
  all.byEntry = l.perOwner({topK}, "dealt_by_entry");
  all.byMiss = l.perOwner({topK}, "dealt_by_miss");
  all.nFree = l.perOwner({}, "n_free");
  const ComputeSet look = context.execute("find_hot"), merge = context.execute("merge_hits");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    for (unsigned owner = 0; owner != hot.nOwners; ++owner) {
      const unsigned tile = context.tile(slot, owner);
      addVertex(
          l.graph, look, "sparq::FindHot", tile,
          {{"filled", context.filled(slot, owner)},
           {"layer", l.layer(slot, owner)},
           {"clock", buffer.clock[context.task(slot)][owner]},
           {"positions", l.positions[slot]},
           {"held", l.ofOwner(buffer.held, slot, owner)},
           {"stamps", l.ofOwner(buffer.stamps, slot, owner)},
           {"places", found[slot][owner]},
           {"nFound", nFound[slot][owner]}},
          {{"topK", topK}, {"nWays", hot.nWays()}, {"owner", owner}, {"nOwners", hot.nOwners}},
          cycles::findHot(topK, hot.nWays(), hot.nOwners));
      addVertex(l.graph, merge, "sparq::FreeWays", tile,
                {{"nFound", nFound[slot][owner]},
                 {"nFree", all.nFree[slot][owner]},
                 {"byEntry", all.byEntry[slot][owner]},
                 {"byMiss", all.byMiss[slot][owner]}},
                {{"nWays", hot.nWays()}, {"topK", topK}}, cycles::freeWays(topK));
    }
    addVertex(l.graph, merge, "sparq::SumFound", context.tile(slot, l.home),
              {{"nFound", nFound[slot].flatten()}, {"nHits", all.nHits[slot]}},
              {{"nOwners", hot.nOwners}}, cycles::sumFound(hot.nOwners));
  }
  l.addMerge(merge, found, l.noPlaces(l.hitsFirst), all.hits, l.hitsFirst);
  return all;
}

Misses listMisses(const HotLayout &l, const Found &found) {
  const Context &context = l.context;
  const HotBuffer &buffer = l.buffer;
  const HotRows &hot = l.hot;
  Misses misses;
  misses.entries = l.atHome({l.topK}, "missing_entries");
  misses.rows = l.atHome({l.topK}, "missing_rows");
  misses.n = buffer.misses.slice(context.task(0), context.task(0) + context.nSlots());
  const ComputeSet cs = context.execute("list_misses");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    addVertex(l.graph, cs, "sparq::ListMisses", context.tile(slot, l.home),
              {{"filled", context.filled(slot, l.home)},
               {"layer", l.layer(slot, l.home)},
               {"positions", l.positions[slot]},
               {"hits", found.hits[slot]},
               {"nHits", found.nHits[slot]},
               {"entries", misses.entries[slot]},
               {"rows", misses.rows[slot]},
               {"nMisses", misses.n[slot]}},
              {{"topK", l.topK},
               {"rowBase", static_cast<unsigned>(context.layout().keyRow(context.task(slot), 0))},
               {"layerRows", context.cache.layerRows()}},
              cycles::listMisses(l.topK));
  // Owners rank their ways beside it, before any miss is known.
  misses.order = l.perOwner({hot.nWays()}, "order_of_ways");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned owner = 0; owner != hot.nOwners; ++owner)
      addVertex(l.graph, cs, "sparq::RankWays", context.tile(slot, owner),
                {{"layer", l.layer(slot, owner)},
                 {"stamps", l.ofOwner(buffer.stamps, slot, owner)},
                 {"order", misses.order[slot][owner]}},
                {{"nWays", hot.nWays()}}, cycles::rankWays(hot.nWays()));
  return misses;
}

} // namespace sparq
