// SPDX-License-Identifier: Apache-2.0
//
// The selected positions into the buffer of hot rows: which are there, which places the others get,
// and waves of rows for them from streaming memory.
#include "hot_rows.hpp"
#include "codelets/cycles.hpp"
#include "codelets/hot_find.cycles.hpp"
#include "codelets/hot_insert.cycles.hpp"
#include "codelets/hot_misses.cycles.hpp"
#include "codelets/hot_places.cycles.hpp"
#include "planning.hpp"
#include "remote_copy.hpp"
#include <cmath>
#include <limits>

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

class HotList {
public:
  HotList(const Context &contextIn, const HotBuffer &bufferIn, const Tensor &positionsIn)
      : context(contextIn), graph(contextIn.graph), p(contextIn.placement()),
        hot(contextIn.plan().hot), cache(contextIn.cache), buffer(bufferIn),
        source(storeOf<JoinedRows>(contextIn.cache)), positions(positionsIn),
        topK(static_cast<unsigned>(positionsIn.dim(1))),
        rowsPerPart(entriesPerPart(contextIn.plan(), topK)),
        nEntryParts(ceilDiv(topK, rowsPerPart)),
        hitsFirst(hot.nOwners + nEntryParts <= p.parts ? hot.nOwners : 0),
        missesFirst(hitsFirst + 2 * nEntryParts <= p.parts ? hitsFirst + nEntryParts : hitsFirst) {}

  Tensor makeHot() {
    find();
    list();
    deal();
    fetch();
    return hotPlaces;
  }

private:
  // {slots, nOwners, shape...}, each on its owner.
  Tensor perOwner(const std::vector<std::size_t> &shape, const char *name) const {
    return context.once(name, [&] {
      return addPerPart(graph, p, UNSIGNED_INT, hot.nOwners, shape, {context.dc, name});
    });
  }
  // Of a piece of the list that is on part `firstPart` + i.
  template <class Use> void forEachPiece(const Use &use) const {
    for (unsigned first = 0, i = 0; first < topK; first += rowsPerPart, ++i)
      use(i, first, std::min(first + rowsPerPart, topK));
  }
  // {slots, topK}, pieces of the list spread over the parts from one on.
  void mapEntries(const Tensor &t, unsigned firstPart) const {
    for (unsigned slot = 0; slot != p.slots; ++slot)
      forEachPiece([&](unsigned i, unsigned first, unsigned end) {
        graph.setTileMapping(t[slot].slice(first, end), p.tile(slot, firstPart + i));
      });
  }
  Tensor perEntry(const char *name, unsigned firstPart) const {
    return context.once(name, [&] {
      const Tensor t = graph.addVariable(UNSIGNED_INT, {p.slots, topK}, {context.dc, name});
      mapEntries(t, firstPart);
      return t;
    });
  }
  // {slots, shape...} on a part; on the part that speaks for a task.
  Tensor onPart(unsigned part, const std::vector<std::size_t> &shape, const char *name) const {
    return context.once(name, [&] {
      std::vector<std::size_t> full{p.slots};
      full.insert(full.end(), shape.begin(), shape.end());
      const Tensor t = graph.addVariable(UNSIGNED_INT, full, {context.dc, name});
      for (unsigned slot = 0; slot != p.slots; ++slot)
        graph.setTileMapping(t[slot], p.tile(slot, part));
      return t;
    });
  }
  Tensor atHome(const std::vector<std::size_t> &shape, const char *name) const {
    return onPart(home, shape, name);
  }
  Tensor layer(unsigned slot, unsigned part) const { return cache.layer[slot][part]; }
  Tensor ofOwner(const Tensor &t, unsigned slot, unsigned owner) const {
    return t[context.task(slot)][owner].flatten();
  }

  // Adds the vertices that merge what owners {slots, nOwners, topK} say of each entry with what is
  // known. The results are on the parts from firstPart on.
  void addMerge(const ComputeSet &cs, const Tensor &found, const Tensor &before,
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
  Tensor noPlaces(unsigned firstPart) const {
    const std::string name = "no_slots_" + std::to_string(firstPart);
    return context.once(name, [&] {
      const Tensor zero = graph.addConstant(UNSIGNED_INT, {p.slots, topK}, 0u, {context.dc, name});
      mapEntries(zero, firstPart);
      return zero;
    });
  }

  void find() {
    const Tensor found = perOwner({topK}, "hot_found"), nFound = perOwner({nWorkers}, "n_found");
    hits = perEntry("hot_hits", hitsFirst);
    nHits = atHome({nWorkers}, "n_hits");
    byEntry = perOwner({topK}, "dealt_by_entry");
    byMiss = perOwner({topK}, "dealt_by_miss");
    nFree = perOwner({}, "n_free");
    const ComputeSet look = context.execute("find_hot"), merge = context.execute("merge_hits");
    for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
      for (unsigned owner = 0; owner != hot.nOwners; ++owner) {
        const unsigned tile = context.tile(slot, owner);
        addVertex(
            graph, look, "sparq::FindHot", tile,
            {{"filled", context.filled(slot, owner)},
             {"layer", layer(slot, owner)},
             {"clock", buffer.clock[context.task(slot)][owner]},
             {"positions", positions[slot]},
             {"held", ofOwner(buffer.held, slot, owner)},
             {"stamps", ofOwner(buffer.stamps, slot, owner)},
             {"places", found[slot][owner]},
             {"nFound", nFound[slot][owner]}},
            {{"topK", topK}, {"nWays", hot.nWays()}, {"owner", owner}, {"nOwners", hot.nOwners}},
            cycles::findHot(topK, hot.nWays(), hot.nOwners));
        addVertex(graph, merge, "sparq::FreeWays", tile,
                  {{"nFound", nFound[slot][owner]},
                   {"nFree", nFree[slot][owner]},
                   {"byEntry", byEntry[slot][owner]},
                   {"byMiss", byMiss[slot][owner]}},
                  {{"nWays", hot.nWays()}, {"topK", topK}}, cycles::freeWays(topK));
      }
      addVertex(graph, merge, "sparq::SumFound", context.tile(slot, home),
                {{"nFound", nFound[slot].flatten()}, {"nHits", nHits[slot]}},
                {{"nOwners", hot.nOwners}}, cycles::sumFound(hot.nOwners));
    }
    addMerge(merge, found, noPlaces(hitsFirst), hits, hitsFirst);
  }

  void list() {
    entries = atHome({topK}, "missing_entries");
    rows = atHome({topK}, "missing_rows");
    nMisses = buffer.misses.slice(context.task(0), context.task(0) + context.nSlots());
    const ComputeSet cs = context.execute("list_misses");
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      addVertex(graph, cs, "sparq::ListMisses", context.tile(slot, home),
                {{"filled", context.filled(slot, home)},
                 {"layer", layer(slot, home)},
                 {"positions", positions[slot]},
                 {"hits", hits[slot]},
                 {"nHits", nHits[slot]},
                 {"entries", entries[slot]},
                 {"rows", rows[slot]},
                 {"nMisses", nMisses[slot]}},
                {{"topK", topK},
                 {"rowBase", static_cast<unsigned>(context.layout().keyRow(context.task(slot), 0))},
                 {"layerRows", cache.layerRows()}},
                cycles::listMisses(topK));
    // Beside it, what misses would take.
    order = perOwner({hot.nWays()}, "order_of_ways");
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      for (unsigned owner = 0; owner != hot.nOwners; ++owner)
        addVertex(graph, cs, "sparq::RankWays", context.tile(slot, owner),
                  {{"layer", layer(slot, owner)},
                   {"stamps", ofOwner(buffer.stamps, slot, owner)},
                   {"order", order[slot][owner]}},
                  {{"nWays", hot.nWays()}}, cycles::rankWays(hot.nWays()));
  }

  void deal() {
    hotPlaces = perEntry("hot_slots", hitsFirst);
    missPlaces = perEntry("missing_slots", missesFirst);
    startWaves();
    const ComputeSet cs = context.execute("deal_slots");
    addPlan(cs);
    addFirst(cs);
    nListWaves = context.agreed(nListWaves, behindControl());
    const ComputeSet merge = context.execute("merge_dealt");
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      for (unsigned owner = 0; owner != hot.nOwners; ++owner)
        addVertex(graph, cs, "sparq::DealPlaces", context.tile(slot, owner),
                  {{"layer", layer(slot, owner)},
                   {"clock", buffer.clock[context.task(slot)][owner]},
                   {"nMisses", toFetch[slot]},
                   {"positions", positions[slot]},
                   {"entries", entries[slot]},
                   {"nFree", nFree[slot]},
                   {"order", order[slot][owner]},
                   {"held", ofOwner(buffer.held, slot, owner)},
                   {"stamps", ofOwner(buffer.stamps, slot, owner)},
                   {"byEntry", byEntry[slot][owner]},
                   {"byMiss", byMiss[slot][owner]}},
                  {{"nWays", hot.nWays()},
                   {"owner", owner},
                   {"nOwners", hot.nOwners},
                   {"ownersShift", log2Of(hot.nOwners)}},
                  cycles::dealPlaces(topK, hot.nOwners));
    addMore(merge);
    inList = atHome({2}, "first_in_list");
    inAll = atHome({2}, "first_in_all");
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      addVertex(graph, merge, "sparq::FirstMiss", context.tile(slot, home),
                {{"nMisses", nMisses.slice(0, std::max(1u, slot))},
                 {"nWaves", nListWaves},
                 {"inList", inList[slot]},
                 {"inAll", inAll[slot]}},
                {{"nBefore", slot}, {"listSlots", listSlots()}, {"waveRows", hot.listRows()}},
                cycles::firstMiss(slot, slot / listSlots()));
    addMerge(merge, byEntry, hits, hotPlaces, hitsFirst);
    addMerge(merge, byMiss, noPlaces(missesFirst), missPlaces, missesFirst);
  }

  // ---- rows from streaming memory, wave by wave
  unsigned listSlots() const { return ceilDiv(p.slots, hot.nLists); }
  // The rows of a wave, and where they go on chip: each list has so many, the first ones of a wave.
  struct MissWave {
    unsigned listRows, listSlots, nLists;
    unsigned cutRows;    // that arrive on one tile
    unsigned fullRows;   // of each list, in the waves before it
    unsigned ownRows;    // that are one task's, for estimates
    std::string landing; // of the names of what arrives
    std::string own;     // of the names of what the tasks have of it

    unsigned nLandings() const { return nLists * perList(); }
    unsigned perList() const { return listRows / cutRows; }
  };
  // Of misses of several heads, one behind the other, twice an even share of a list may be of one.
  unsigned mostOwn() const { return std::min(topK, 2 * ceilDiv(hot.listRows(), listSlots())); }
  // So many rows of each list.
  MissWave wavesOfLists() const {
    return {hot.listRows(), listSlots(), hot.nLists, HotRows::cutRows,
            hot.listRows(), mostOwn(),   "list_",    ""};
  }
  // As many rows, whose ever they are, a row to a tile.
  MissWave waveOfAll() const {
    return {hot.listRows(), p.slots, 1, 1, hot.listRows(), mostOwn(), "", ""};
  }
  // The last rows of a step, where they are few.
  MissWave waveOfFew() const {
    return {hot.fewRows, p.slots, 1, 1, hot.listRows(), std::min(topK, hot.fewRows),
            "few_",      "few_"};
  }
  // Every head has its own rows.
  MissWave wideWave() const {
    return {hot.headRows, 1,       p.slots, HotRows::cutRows, hot.headRows,
            hot.headRows, "wide_", "wide_"};
  }

  unsigned landingTile(const MissWave &w, unsigned landing) const {
    const unsigned nTiles = graph.getTarget().getNumTiles(), n = w.nLandings();
    // Not on the first tiles or the last ones of many slots, which have other work in a wave.
    return n < nTiles ? landing * (nTiles / n) + nTiles / n / 2 : landing % nTiles;
  }
  // {landings, shape...}, spread over the tiles: a remote copy is fastest when it is spread wide.
  Tensor perLanding(const MissWave &w, const Type &type, const std::vector<std::size_t> &shape,
                    const char *name) const {
    return context.once(w.landing + name, [&] {
      std::vector<std::size_t> full{w.nLandings()};
      full.insert(full.end(), shape.begin(), shape.end());
      const Tensor t = graph.addVariable(type, full, {context.dc, w.landing + name});
      for (unsigned i = 0; i != w.nLandings(); ++i)
        graph.setTileMapping(t[i], landingTile(w, i));
      return t;
    });
  }
  // {slots, n, listRows, width} HALF, piece i on that part.
  Tensor pieces(const MissWave &w, unsigned n, unsigned width, const char *name) const {
    return context.once(w.own + name, [&] {
      const Tensor t =
          graph.addVariable(HALF, {p.slots, n, w.listRows, width}, {context.dc, w.own + name});
      for (unsigned slot = 0; slot != p.slots; ++slot)
        for (unsigned i = 0; i != n; ++i)
          graph.setTileMapping(t[slot][i], p.tile(slot, i % p.parts));
      return t;
    });
  }

  // What says which wave comes next is on one of the last tiles, which have the least to do, where
  // no head has its rows of a wave.
  unsigned controlTile() const { return graph.getTarget().getNumTiles() - 1 - behindControl(); }
  unsigned behindControl() const { return graph.getTarget().getNumTiles() < 3 ? 0 : 2; }
  Tensor control(const Type &type, const char *name,
                 const std::vector<std::size_t> &shape = {}) const {
    return context.once(name, [&] {
      const Tensor t = graph.addVariable(type, shape, {context.dc, name});
      graph.setTileMapping(t, controlTile());
      return t;
    });
  }
  // How many rows each task has to fetch: as found, or as assumed.
  Tensor nMissesToFetch() const {
    const double hitRate = context.plan().assumedHitRate;
    if (hitRate < 0)
      return nMisses;
    const std::vector<unsigned> &given = context.plan().assumedMisses;
    std::vector<unsigned> n(context.nSlots(),
                            static_cast<unsigned>(std::lround((1 - hitRate) * topK)));
    for (unsigned slot = 0; slot != n.size() && !given.empty(); ++slot)
      n[slot] = std::min(given.at(context.task(slot)), topK);
    const Tensor assumed = graph.addConstant<unsigned>(
        UNSIGNED_INT, {context.nSlots()}, ArrayRef<unsigned>(n), {context.dc, "assumed_misses"});
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      graph.setTileMapping(assumed[slot], context.tile(slot, home));
    return assumed;
  }
  void startWaves() {
    toFetch = nMissesToFetch();
    wave = control(UNSIGNED_INT, "miss_wave");
    nextWave = control(UNSIGNED_INT, "next_miss_wave");
    nListWaves = control(INT, "list_waves");
    left = control(UNSIGNED_INT, "misses_of_lists", {hot.nLists});
    way = control(INT, "fetch_way");
    moreOfLists = control(BOOL, "more_of_lists");
    more = control(BOOL, "more_misses");
    units = control(INT, "units_to_read");
    const Tensor before = graph.addConstant(UNSIGNED_INT, {}, std::numeric_limits<unsigned>::max(),
                                            {context.dc, "before_first_wave"});
    graph.setTileMapping(before, controlTile());
    context.copy(before, nextWave, {context.dc, "first_wave"});
  }
  // What wide waves cost, which read all there may be, in rows as HotRows::waveCost.
  unsigned wideCost() const {
    return hot.headRows == 0
               ? std::numeric_limits<unsigned>::max()
               : ceilDiv(topK, hot.headRows) * (p.slots * hot.headRows + HotRows::waveCost);
  }
  // Which waves there will be.
  void addPlan(const ComputeSet &cs) const {
    const unsigned nUnits = ceilDiv(hot.listRows(), hot.readUnit());
    addVertex(graph, cs, "sparq::PlanMisses", controlTile(),
              {{"nMisses", toFetch}, {"left", left}, {"nWaves", nListWaves}, {"way", way}},
              {{"nSlots", context.nSlots()},
               {"nLists", hot.nLists},
               {"listSlots", listSlots()},
               {"waveRows", hot.listRows()},
               {"unit", hot.readUnit()},
               {"waveCost", HotRows::waveCost},
               {"fewRows", hot.fewRows},
               {"fewCost", HotRows::fewCost},
               {"wideCost", wideCost()}},
              cycles::planMisses(context.nSlots(), hot.nLists, nUnits, hot.nLists != 1 ? 2 : 1));
  }
  // The next wave, and whether there is one. Beside other work: a compute set costs more than this.
  void addMore(const ComputeSet &cs) const {
    addVertex(graph, cs, "sparq::MoreMisses", controlTile(),
              {{"left", left},
               {"nWaves", nListWaves},
               {"wave", nextWave},
               {"moreOfLists", moreOfLists},
               {"more", more},
               {"units", units}},
              {{"nLists", hot.nLists},
               {"waveRows", hot.listRows()},
               {"fewRows", hot.fewRows},
               {"unit", hot.readUnit()}},
              cycles::moreMisses(hot.nLists, ceilDiv(hot.listRows(), hot.readUnit())));
  }

  // The rows of each head in the next wave of lists, and in that of all: on two parts, for they are
  // made side by side, where it is not known yet which one it is.
  struct Placed {
    Tensor rows; // {slots, listRows}
    unsigned part;
    bool ofAll;
  };
  std::vector<Placed> placements() const {
    std::vector<Placed> all{{onPart(home, {hot.listRows()}, "placed_misses"), home, true}};
    const unsigned other = p.parts > 1 ? home - 1 : home;
    if (hot.nLists != 1)
      all.push_back({onPart(other, {hot.listRows()}, "placed_of_lists"), other, false});
    return all;
  }
  // For the first wave.
  void addFirst(const ComputeSet &cs) const {
    for (const Placed &placed : placements())
      for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
        const unsigned first = placed.ofAll ? 0 : slot / listSlots() * listSlots(),
                       nBefore = slot - first;
        addVertex(graph, cs, "sparq::PlaceFirst", context.tile(slot, placed.part),
                  {{"before", toFetch.slice(first, first + std::max(1u, nBefore))},
                   {"nMisses", toFetch[slot]},
                   {"rows", rows[slot]},
                   {"waveRow", placed.rows[slot]}},
                  {{"nBefore", nBefore}, {"waveRows", hot.listRows()}},
                  cycles::placeFirst(hot.listRows(), mostOwn(), nBefore));
      }
  }
  // For the wave behind this one.
  void addNextRows(const ComputeSet &cs, const Placed &placed) const {
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      addVertex(graph, cs, "sparq::PlaceMisses", context.tile(slot, placed.part),
                {{"wave", wave},
                 {"first", placed.ofAll ? inAll[slot] : inList[slot]},
                 {"nMisses", nMisses[slot]},
                 {"rows", rows[slot]},
                 {"waveRow", placed.rows[slot]}},
                {{"waveRows", hot.listRows()}}, cycles::placeMisses(hot.listRows(), mostOwn()));
  }

  void fetch() const {
    const bool ofAllOnly = hot.nLists == 1 && hot.headRows == 0;
    const std::vector<Placed> placed = placements();
    const auto addAll = [&](const ComputeSet &cs) {
      addMore(cs);
      addNextRows(cs, placed[0]);
    };
    Switch first(ofAllOnly ? way : context.greatest(way, behindControl()), {context.dc, "fetch"});
    if (hot.nLists != 1) {
      Sequence ofLists({}, {context.dc, "fetch_lists"}), whether({}, {context.dc, "more_of_lists"});
      addSharedWave(context.within(ofLists), wavesOfLists(), placed[1].rows, inList,
                    [&](const ComputeSet &cs) {
                      addAll(cs);
                      addNextRows(cs, placed[1]);
                    });
      const Tensor again = context.within(whether).greatest(moreOfLists, behindControl());
      first.add(1, RepeatWhileTrue(whether, again, ofLists, {context.dc, "lists"}));
    }
    if (hot.headRows != 0) {
      const unsigned nWaves = ceilDiv(topK, hot.headRows);
      Sequence wide({}, {context.dc, "fetch_wide"});
      addWideWave(context.within(wide), nWaves);
      first.add(2, Repeat(nWaves, wide, {context.dc, "wide_misses"}));
    }
    if (!ofAllOnly)
      context.program.add(first);
    Sequence ofAll({}, {context.dc, "fetch_all"}), few({}, {context.dc, "fetch_few"});
    addSharedWave(context.within(ofAll), waveOfAll(), placed[0].rows, inAll, addAll);
    addSharedWave(context.within(few), waveOfFew(), placed[0].rows.slice(0, hot.fewRows, 1), inAll,
                  [&](const ComputeSet &cs) { addMore(cs); });
    Sequence body({}, {context.dc, "misses"}), whether({}, {context.dc, "more_misses"});
    const Tensor most = context.within(body).greatest(units, behindControl()),
                 again = context.within(whether).greatest(more, behindControl());
    body.add(Switch(most, {{0, few}}, ofAll, {context.dc, "few_misses"}));
    context.program.add(RepeatWhileTrue(whether, again, body, {context.dc, "misses"}));
  }

  // Rows of lists, of each head those that are listed in `placed`.
  template <class AddNext>
  void addSharedWave(const Context &inner, const MissWave &w, const Tensor &placed,
                     const Tensor &first, const AddNext &addNext) const {
    const unsigned n = w.cutRows, nSlots = context.nSlots();
    const Tensor offsets = perLanding(w, UNSIGNED_INT, {n}, "rows_of_wave");
    inner.copy(nextWave, wave, {inner.dc, "next_wave"});
    const ComputeSet sum = inner.execute("rows_of_wave");
    // Landings of a list without a task of this round fetch what nobody takes.
    for (unsigned i = 0; i != w.nLandings(); ++i) {
      const unsigned firstSlot = i / w.perList() * w.listSlots, row = i % w.perList() * n,
                     begin = firstSlot < nSlots ? firstSlot : 0,
                     end = std::min(begin + w.listSlots, nSlots);
      addVertex(graph, sum, "sparq::WaveRows", landingTile(w, i),
                {{"ofSlots", placed.slice(begin, end).slice(row, row + n, 1).flatten()},
                 {"offsets", offsets[i]}},
                {{"nSlots", end - begin}, {"n", n}}, cycles::waveRows(n, end - begin));
    }
    readAndInsert(inner, w, offsets, first, w.listRows == w.fullRows, addNext);
  }

  // Of every head its own rows, as many of each.
  void addWideWave(const Context &inner, unsigned nWaves) const {
    const MissWave w = wideWave();
    const unsigned n = w.cutRows, nSlots = context.nSlots();
    const Tensor offsets = perLanding(w, UNSIGNED_INT, {n}, "rows_of_wave");
    inner.copy(nextWave, wave, {inner.dc, "next_wave"});
    const ComputeSet list = inner.execute("head_rows");
    for (unsigned i = 0; i != w.nLandings(); ++i) {
      const unsigned slot = std::min(i / w.perList(), nSlots - 1);
      addVertex(graph, list, "sparq::HeadRows", landingTile(w, i),
                {{"wave", wave},
                 {"nMisses", nMisses[slot]},
                 {"rows", rows[slot]},
                 {"offsets", offsets[i]}},
                {{"waveRows", w.listRows}, {"row", i % w.perList() * n}, {"n", n}},
                cycles::headRows(n));
    }
    const Tensor zero = context.once("wide_first", [&] {
      const Tensor t =
          graph.addConstant(UNSIGNED_INT, {p.slots, 2}, 0u, {context.dc, "wide_first"});
      for (unsigned slot = 0; slot != p.slots; ++slot)
        graph.setTileMapping(t[slot], p.tile(slot, home));
      return t;
    });
    readAndInsert(inner, w, offsets, zero, false, [&](const ComputeSet &cs) {
      if (nWaves != 1)
        addMore(cs); // counts
    });
  }

  // Reads the rows, and brings each to the parts of the tasks that may have it, which take theirs:
  // firstMiss {slots, 2}, see the codelet FirstMiss. addNext: what the wave after this one needs.
  // inUnits: only as much is read as `units` says.
  template <class AddNext>
  void readAndInsert(const Context &inner, const MissWave &w, const Tensor &offsets,
                     const Tensor &firstMiss, bool inUnits, const AddNext &addNext) const {
    const unsigned d = context.headDim(), n = w.cutRows, nSlots = context.nSlots(),
                   pairWidth = d / HotRows::nPairs, nSlices = d / hot.width,
                   nValueParts = hot.valueParts(d, p.parts);
    const std::size_t rowElements = context.layout().rowElements;
    const Tensor landing = perLanding(w, HALF, {n, rowElements}, "landing"),
                 cut = perLanding(w, HALF, {n * 2 * std::size_t(d)}, "cut_rows");
    // The first landings of each list.
    const auto read = [&](unsigned nOfList, Sequence &program) {
      const auto firstOf = [&](const Tensor &t, std::size_t each) {
        return t.reshape({w.nLists, w.perList(), n * each})
            .slice(0, nOfList, 1)
            .reshape({std::size_t(w.nLists) * nOfList * n, each});
      };
      readRemote(*cache.lockstep, source.buffer(), firstOf(landing, rowElements),
                 firstOf(offsets, 1).flatten(), program, {context.dc, "read_rows"});
    };
    const unsigned unit = hot.readUnit() / n;
    if (inUnits && unit < w.perList()) {
      inner.begin(landing);
      Sequence all({}, {context.dc, "read_all"});
      read(w.perList(), all);
      Switch some(inner.greatest(units, behindControl()), all, {context.dc, "read_some"});
      for (unsigned i = 1; i * unit < w.perList(); ++i) {
        Sequence part({}, {context.dc, "read_part"});
        read(i * unit, part);
        some.add(static_cast<std::int32_t>(i), part);
      }
      inner.program.add(some);
    } else {
      read(w.perList(), inner.program);
    }
    const ComputeSet cutting = inner.execute("cut_rows");
    for (unsigned i = 0; i != w.nLandings(); ++i)
      source.addCut(graph, cutting, landingTile(w, i), landing[i].flatten(), cut[i], n, d,
                    hot.width);
    addNext(cutting);
    // Every part gets its piece of every row of its list.
    const Tensor keyPieces = pieces(w, HotRows::nPairs * hot.nSets, pairWidth, "key_pieces"),
                 valuePieces = pieces(w, nValueParts, hot.width, "value_pieces");
    std::vector<Tensor> from, to;
    for (unsigned slot = 0; slot != nSlots; ++slot) {
      const std::size_t firstLanding = std::size_t(slot / w.listSlots) * w.perList();
      const auto ofRows = [&](std::size_t begin, std::size_t nPieces, std::size_t width) {
        return cut.slice(firstLanding, firstLanding + w.perList())
            .slice(begin, begin + nPieces * n * width, 1)
            .reshape({w.perList(), nPieces, n, width})
            .dimShuffle({1, 0, 2, 3})
            .flatten();
      };
      from.push_back(ofRows(0, HotRows::nPairs, pairWidth).broadcast(hot.nSets, 0));
      to.push_back(keyPieces[slot].flatten());
      from.push_back(
          ofRows(std::size_t(n) * d, nSlices, hot.width).broadcast(nValueParts / nSlices, 0));
      to.push_back(valuePieces[slot].flatten());
    }
    inner.copy(concat(from), concat(to), {context.dc, "spread_rows"});
    const ComputeSet insert = inner.execute("insert_rows");
    const auto addInsert = [&](unsigned slot, unsigned i, const Tensor &pieces, const Tensor &rows,
                               unsigned set, unsigned setShift) {
      const unsigned part = i % p.parts, width = static_cast<unsigned>(rows.dim(2));
      addVertex(graph, insert, "sparq::InsertRows", context.tile(slot, part),
                {{"layer", layer(slot, part)},
                 {"wave", wave},
                 {"first", firstMiss[slot]},
                 {"nMisses", nMisses[slot]},
                 {"places", missPlaces[slot]},
                 {"pieces", pieces[slot][i].flatten()},
                 {"rows", rows.flatten()}},
                {{"fullRows", w.fullRows},
                 {"nRows", static_cast<unsigned>(rows.dim(1))},
                 {"width", width},
                 {"set", set},
                 {"setShift", setShift}},
                cycles::insertRows(w.ownRows, width, 1u << setShift));
    };
    for (unsigned slot = 0; slot != nSlots; ++slot) {
      const unsigned task = context.task(slot);
      for (unsigned i = 0; i != HotRows::nPairs * hot.nSets; ++i)
        addInsert(slot, i, keyPieces, buffer.keys[task][i], i / HotRows::nPairs, hot.setShift());
      for (unsigned i = 0; i != nValueParts; ++i)
        addInsert(slot, i, valuePieces, buffer.values[task][i], 0, 0);
    }
  }

  static constexpr unsigned nWorkers = cycles::nWorkers;
  const Context &context;
  Graph &graph;
  const Placement &p;
  const HotRows &hot;
  const Cache &cache;
  const HotBuffer &buffer;
  const JoinedRows &source;
  const Tensor positions; // {slots, topK}
  // Entries of the list on one part, on how many, and from which one on: what is found hot, and
  // what is dealt to misses. Not on the owners' where there are enough, and apart.
  const unsigned topK, rowsPerPart, nEntryParts, hitsFirst, missesFirst;
  const unsigned home = p.parts - 1; // has less to do than the first parts
  Tensor hits, nHits, byEntry, byMiss, nFree, order;
  Tensor entries, rows, nMisses; // of misses
  Tensor inList, inAll;          // {slots, 2}: of waves of lists, and of all
  Tensor hotPlaces, missPlaces;  // {slots, topK}
  Tensor toFetch;                // {slots}: misses, or how many are taken to be
  // What PlanMisses says; the wave, the one after it, whether there is one, and of what that is
  // read.
  Tensor left, nListWaves, way;
  Tensor wave, nextWave, moreOfLists, more, units;
};

} // namespace

Tensor makeHot(const Context &context, const HotBuffer &buffer, const Tensor &positions) {
  return HotList(context, buffer, positions).makeHot();
}

} // namespace sparq
