// SPDX-License-Identifier: Apache-2.0
//
// Brings the selected positions into the buffer of hot rows: finds those that are there, lists the
// others (misses), deals places of the buffer to misses, and fetches their rows. A place is written
// plus 1; 0 means none.
#include "codelets/hot_rows.cycles.hpp"
#include "planning.hpp"
#include "sparq/step_names.hpp"
#include "stores/rows.hpp"
#include <cmath>
#include <limits>

namespace sparq {

namespace {

// Where lists of selected positions and the data of owners are on chip, in one round.
class HotLayout {
public:
  HotLayout(const Context &contextIn, const HotBuffer &bufferIn, const Tensor &positionsIn)
      : context(contextIn), graph(contextIn.graph), p(contextIn.placement()),
        hot(contextIn.plan().hot), buffer(bufferIn), positions(positionsIn),
        topK(static_cast<unsigned>(positionsIn.dim(1))),
        pieceLength(entriesPerPart(contextIn.plan(), topK)), nPieces(ceilDiv(topK, pieceLength)),
        hitsFirst(hot.nOwners + nPieces <= p.parts ? hot.nOwners : 0),
        missesFirst(hitsFirst + 2 * nPieces <= p.parts ? hitsFirst + nPieces : hitsFirst),
        home(p.parts - 1) {}

  const Context &context;
  Graph &graph;
  const Placement &p;
  const HotRows &hot;
  const HotBuffer &buffer;
  const Tensor positions; // {slots, topK}
  const unsigned topK;
  // A list is cut into nPieces pieces of pieceLength entries. Those of hits are on the parts from
  // hitsFirst on, those of misses from missesFirst on: apart from each other and from the owners
  // where there are enough parts.
  const unsigned pieceLength, nPieces, hitsFirst, missesFirst;
  const unsigned home; // the last part of a slot, which has less to do than the first ones

  // {slots, nOwners, shape...} UNSIGNED_INT, each on its owner.
  Tensor perOwner(const std::vector<std::size_t> &shape, const char *name) const {
    return context.onParts(UNSIGNED_INT, hot.nOwners, shape, name);
  }
  // {slots, topK} UNSIGNED_INT, pieces on the parts from firstPart on.
  Tensor perEntry(const char *name, unsigned firstPart) const {
    return context.sliced(UNSIGNED_INT, topK, pieceLength, 1, name, firstPart).squeeze({2});
  }
  // {slots, shape...} UNSIGNED_INT on that part.
  Tensor atHome(const std::vector<std::size_t> &shape, const char *name) const {
    return context.onPart(home, UNSIGNED_INT, shape, name);
  }
  Tensor layer(unsigned slot, unsigned part) const { return context.cache.layer[slot][part]; }
  // {nLayers * nWays}: what an owner keeps of the slot's task.
  Tensor ofOwner(const Tensor &t, unsigned slot, unsigned owner) const {
    return t[context.task(slot)][owner].flatten();
  }
  // Adds vertices that merge the places that owners found {slots, nOwners, topK} with those known
  // before, into `merged`.
  void addMerge(const ComputeSet &cs, const Tensor &found, const Tensor &before,
                const Tensor &merged, unsigned firstPart) const {
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      forEachPiece([&](unsigned i, unsigned first, unsigned end) {
        context.addVertex(cs, "sparq::MergePlaces", slot, firstPart + i,
                          cycles::mergePlaces(end - first, hot.nOwners),
                          "found"_f = found[slot].slice(first, end, 1),
                          "before"_f = before[slot].slice(first, end),
                          "places"_f = merged[slot].slice(first, end), "nOwners"_f = hot.nOwners,
                          "nEntries"_f = end - first);
      });
  }
  // {slots, topK}: zeros, where a tensor of entries is.
  Tensor noPlaces(const Tensor &beside, const char *name) const {
    return context.once(name, [&] {
      const Tensor zero = graph.addConstant(UNSIGNED_INT, {p.slots, topK}, 0u, {context.dc, name});
      graph.setTileMapping(zero, graph.getTileMapping(beside));
      return zero;
    });
  }

private:
  // Calls use(i, first, end) for piece i of a list, the entries [first, end).
  template <class Use> void forEachPiece(const Use &use) const {
    for (unsigned first = 0, i = 0; first < topK; first += pieceLength, ++i)
      use(i, first, std::min(first + pieceLength, topK));
  }
};

struct Found {
  Tensor hits;            // {slots, topK}: places of the entries that are hot
  Tensor nHits;           // {slots, workers}
  Tensor nFree;           // {slots, nOwners}: ways that no selected position holds
  Tensor byEntry, byMiss; // {slots, nOwners, topK}: zeros, for deal
};

struct Misses {
  Tensor entries, rows; // {slots, topK}: the first n are used; rows are written plus 1
  Tensor n;             // {slots}
  Tensor order;         // {slots, nOwners, nWays}: in which owners give up their ways
};

struct Dealt {
  Tensor places;     // {slots, topK}: of all entries
  Tensor missPlaces; // {slots, topK}: of misses, by number
};

// Rows of misses, fetched from streaming memory wave by wave (docs/design_ipu.md, Three tiers).
// Each row lands on one of many tiles and is cut into pieces there; the pieces go to the parts of
// the tasks that share the wave, which keep those of their own rows.
class MissWaves {
public:
  MissWaves(const HotLayout &layout, const Misses &missesIn)
      : l(layout), context(layout.context), graph(layout.graph), p(layout.p), hot(layout.hot),
        topK(layout.topK), home(layout.home), source(storeOf<JoinedRows>(context.cache)),
        misses(missesIn), toFetch_(countsToFetch()) {}

  // {slots}: how many rows each task fetches: those that were counted, or that a plan assumes.
  const Tensor &toFetch() const { return toFetch_; }
  // Adds the step that decides which waves follow and places the rows of the first one. Places are
  // dealt in the same compute set, which it returns.
  ComputeSet plan() {
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
    context.copy(before, nextWave, "first_wave");
    const ComputeSet cs = context.execute(steps::planWaves);
    addPlan(cs);
    addFirstRows(cs);
    nListWaves = context.agreed(nListWaves, behindControl());
    return cs;
  }
  // Adds what the first wave needs beside other work: whether there is one, and where the misses of
  // each task begin. Behind plan().
  void addFirst(const ComputeSet &cs) {
    addMore(cs);
    inList = l.atHome({2}, "first_in_list");
    inAll = l.atHome({2}, "first_in_all");
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      context.addVertex(
          cs, "sparq::FirstMiss", slot, home, cycles::firstMiss(slot, slot / listSlots()),
          "nMisses"_f = misses.n.slice(0, std::max(1u, slot)), "nWaves"_f = nListWaves,
          "inList"_f = inList[slot], "inAll"_f = inAll[slot], "nBefore"_f = slot,
          "listSlots"_f = listSlots(), "waveRows"_f = hot.listRows());
  }
  // Adds all waves. missPlaces {slots, topK}: places of misses, by number.
  void fetch(const Tensor &missPlacesIn) {
    missPlaces = missPlacesIn;
    const bool ofAllOnly = hot.nLists == 1 && hot.headRows == 0;
    const std::vector<Placed> placed = placements();
    const auto addAll = [&](const ComputeSet &cs) {
      addMore(cs);
      addNextRows(cs, placed[0]);
    };
    Switch first(ofAllOnly ? way : context.greatest(way, behindControl()),
                 {context.dc, steps::fetch});
    if (hot.nLists != 1) {
      Sequence lists({}, {context.dc, "fetch_lists"}), whether({}, {context.dc, "more_of_lists"});
      addSharedWave(context.within(lists), ofLists(), placed[1].rows, inList,
                    [&](const ComputeSet &cs) {
                      addAll(cs);
                      addNextRows(cs, placed[1]);
                    });
      const Tensor again = context.within(whether).greatest(moreOfLists, behindControl());
      first.add(1, RepeatWhileTrue(whether, again, lists, {context.dc, "lists"}));
    }
    if (hot.headRows != 0) {
      const unsigned nWaves = ceilDiv(topK, hot.headRows);
      Sequence own({}, {context.dc, "fetch_wide"});
      addWideWave(context.within(own), nWaves);
      first.add(2, Repeat(nWaves, own, {context.dc, "wide_misses"}));
    }
    if (!ofAllOnly)
      context.program.add(first);
    Sequence all({}, {context.dc, "fetch_all"}), few({}, {context.dc, "fetch_few"});
    addSharedWave(context.within(all), ofAll(), placed[0].rows, inAll, addAll);
    addSharedWave(context.within(few), ofFew(), placed[0].rows.slice(0, hot.fewRows, 1), inAll,
                  [&](const ComputeSet &cs) { addMore(cs); });
    Sequence body({}, {context.dc, "misses"}), whether({}, {context.dc, "more_misses"});
    const Tensor most = context.within(body).greatest(units, behindControl()),
                 again = context.within(whether).greatest(more, behindControl());
    body.add(Switch(most, {{0, few}}, all, {context.dc, steps::fewMisses}));
    context.program.add(RepeatWhileTrue(whether, again, body, {context.dc, "misses"}));
  }

private:
  // The rows of a wave, and where they land: each list has listRows of them.
  struct Wave {
    unsigned listRows, listSlots, nLists;
    unsigned cutRows;    // that land on one tile
    unsigned fullRows;   // of each list, in the waves before it
    unsigned ownRows;    // of one task, for estimates
    std::string landing; // prefix of the names of what lands
    std::string own;     // prefix of the names of the pieces that tasks get

    unsigned nLandings() const { return nLists * perList(); }
    unsigned perList() const { return listRows / cutRows; }
  };
  MissWaves::Wave ofLists() const {
    return {hot.listRows(), listSlots(), hot.nLists, HotRows::cutRows,
            hot.listRows(), mostOwn(),   "list_",    ""};
  } // as many rows of each list
  MissWaves::Wave ofAll() const {
    return {hot.listRows(), p.slots, 1, 1, hot.listRows(), mostOwn(), "", ""};
  } // as many rows as one list of ofLists, of any task, a row to a tile
  MissWaves::Wave ofFew() const {
    return {hot.fewRows, p.slots, 1, 1, hot.listRows(), std::min(topK, hot.fewRows),
            "few_",      "few_"};
  } // the last rows of a step, where they are few
  MissWaves::Wave wide() const {
    return {hot.headRows, 1,       p.slots, HotRows::cutRows, hot.headRows,
            hot.headRows, "wide_", "wide_"};
  } // every task its own rows

  // The rows of each task in the next wave, by number of the row: {slots, listRows} on one part.
  // Those of waves of lists and of all are made side by side, before it is known which comes next.
  struct Placed {
    Tensor rows;
    unsigned part;
    bool ofAll;
  };
  std::vector<MissWaves::Placed> placements() const {
    std::vector<Placed> all{
        {context.onPart(home, UNSIGNED_INT, {hot.listRows()}, "placed_misses"), home, true}};
    const unsigned other = p.parts > 1 ? home - 1 : home;
    if (hot.nLists != 1)
      all.push_back(
          {context.onPart(other, UNSIGNED_INT, {hot.listRows()}, "placed_of_lists"), other, false});
    return all;
  }

  unsigned listSlots() const { return ceilDiv(p.slots, hot.nLists); }
  // An estimate: of misses of several heads, one may own twice an even share of a list.
  unsigned mostOwn() const { return std::min(topK, 2 * ceilDiv(hot.listRows(), listSlots())); }
  // The cost of wide waves, which read all rows that there may be: in rows, as HotRows::waveCost.
  unsigned wideCost() const {
    return hot.headRows == 0
               ? std::numeric_limits<unsigned>::max()
               : ceilDiv(topK, hot.headRows) * (p.slots * hot.headRows + HotRows::waveCost);
  }
  unsigned landingTile(const Wave &w, unsigned landing) const {
    const unsigned nTiles = graph.getTarget().getNumTiles(), n = w.nLandings();
    // Not on the first tiles or the last ones of many slots, which have other work in a wave.
    return n < nTiles ? landing * (nTiles / n) + nTiles / n / 2 : landing % nTiles;
  }
  // {landings, shape...}, spread over the tiles: a remote copy is fastest when it is spread wide.
  Tensor perLanding(const Wave &w, const Type &type, const std::vector<std::size_t> &shape,
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
  // {slots, n, listRows, width} HALF, piece i on part i.
  Tensor pieces(const Wave &w, unsigned n, unsigned width, const char *name) const {
    return context.onParts(HALF, n, {w.listRows, width}, w.own + name);
  }
  unsigned behindControl() const { return graph.getTarget().getNumTiles() < 3 ? 0 : 2; }
  // The wave counter is on one of the last tiles, which are least busy.
  unsigned controlTile() const { return graph.getTarget().getNumTiles() - 1 - behindControl(); }
  Tensor control(const Type &type, const char *name,
                 const std::vector<std::size_t> &shape = {}) const {
    return context.onTile(controlTile(), type, shape, name);
  }
  Tensor countsToFetch() const {
    const double hitRate = context.plan().assumedHitRate;
    if (hitRate < 0)
      return misses.n;
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

  void addPlan(const ComputeSet &cs) const {
    const unsigned nUnits = ceilDiv(hot.listRows(), hot.readUnit());
    addVertex(graph, cs, "sparq::PlanMisses", controlTile(),
              cycles::planMisses(context.nSlots(), hot.nLists, nUnits, hot.nLists != 1 ? 2 : 1),
              "nMisses"_f = toFetch_, "left"_f = left, "nWaves"_f = nListWaves, "way"_f = way,
              "nSlots"_f = context.nSlots(), "nLists"_f = hot.nLists, "listSlots"_f = listSlots(),
              "waveRows"_f = hot.listRows(), "unit"_f = hot.readUnit(),
              "waveCost"_f = HotRows::waveCost, "fewRows"_f = hot.fewRows,
              "fewCost"_f = HotRows::fewCost, "wideCost"_f = wideCost());
  }
  void addFirstRows(const ComputeSet &cs) const {
    for (const Placed &placed : placements())
      for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
        const unsigned first = placed.ofAll ? 0 : slot / listSlots() * listSlots(),
                       nBefore = slot - first;
        context.addVertex(cs, "sparq::PlaceFirst", slot, placed.part,
                          cycles::placeFirst(hot.listRows(), mostOwn(), nBefore),
                          "before"_f = toFetch_.slice(first, first + std::max(1u, nBefore)),
                          "nMisses"_f = toFetch_[slot], "rows"_f = misses.rows[slot],
                          "waveRow"_f = placed.rows[slot], "nBefore"_f = nBefore,
                          "waveRows"_f = hot.listRows());
      }
  }
  // Beside other work, for a compute set of its own would cost more than this.
  void addMore(const ComputeSet &cs) const {
    addVertex(graph, cs, "sparq::MoreMisses", controlTile(),
              cycles::moreMisses(hot.nLists, ceilDiv(hot.listRows(), hot.readUnit())),
              "left"_f = left, "nWaves"_f = nListWaves, "wave"_f = nextWave,
              "moreOfLists"_f = moreOfLists, "more"_f = more, "units"_f = units,
              "nLists"_f = hot.nLists, "waveRows"_f = hot.listRows(), "fewRows"_f = hot.fewRows,
              "unit"_f = hot.readUnit());
  }
  void addNextRows(const ComputeSet &cs, const Placed &placed) const {
    for (unsigned slot = 0; slot != context.nSlots(); ++slot)
      context.addVertex(cs, "sparq::PlaceMisses", slot, placed.part,
                        cycles::placeMisses(hot.listRows(), mostOwn()), "wave"_f = wave,
                        "first"_f = placed.ofAll ? inAll[slot] : inList[slot],
                        "nMisses"_f = misses.n[slot], "rows"_f = misses.rows[slot],
                        "waveRow"_f = placed.rows[slot], "waveRows"_f = hot.listRows());
  }
  // The bodies of loops. addNext(cs) adds what the wave after this one needs.
  // Fetches the rows that `placed` lists for each task.
  template <class AddNext>
  void addSharedWave(const Context &inner, const Wave &w, const Tensor &placed, const Tensor &first,
                     const AddNext &addNext) const {
    const unsigned n = w.cutRows, nSlots = context.nSlots();
    const Tensor offsets = perLanding(w, UNSIGNED_INT, {n}, "rows_of_wave");
    inner.copy(nextWave, wave, "next_wave");
    const ComputeSet sum = inner.execute("rows_of_wave");
    // Landings of a list without a task of this round fetch what nobody takes.
    for (unsigned i = 0; i != w.nLandings(); ++i) {
      const unsigned firstSlot = i / w.perList() * w.listSlots, row = i % w.perList() * n,
                     begin = firstSlot < nSlots ? firstSlot : 0,
                     end = std::min(begin + w.listSlots, nSlots);
      addVertex(graph, sum, "sparq::WaveRows", landingTile(w, i), cycles::waveRows(n, end - begin),
                "ofSlots"_f = placed.slice(begin, end).slice(row, row + n, 1),
                "offsets"_f = offsets[i], "nSlots"_f = end - begin, "n"_f = n);
    }
    readAndInsert(inner, w, offsets, first, w.listRows == w.fullRows, addNext);
  }
  // Fetches rows for every task by itself, the same number for each.
  void addWideWave(const Context &inner, unsigned nWaves) const {
    const Wave w = wide();
    const unsigned n = w.cutRows, nSlots = context.nSlots();
    const Tensor offsets = perLanding(w, UNSIGNED_INT, {n}, "rows_of_wave");
    inner.copy(nextWave, wave, "next_wave");
    const ComputeSet list = inner.execute("head_rows");
    for (unsigned i = 0; i != w.nLandings(); ++i) {
      const unsigned slot = std::min(i / w.perList(), nSlots - 1);
      addVertex(graph, list, "sparq::HeadRows", landingTile(w, i), cycles::headRows(n),
                "wave"_f = wave, "nMisses"_f = misses.n[slot], "rows"_f = misses.rows[slot],
                "offsets"_f = offsets[i], "waveRows"_f = w.listRows, "row"_f = i % w.perList() * n,
                "n"_f = n);
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
  void read(const Context &inner, const Wave &w, const Tensor &landing, const Tensor &offsets,
            bool inUnits) const {
    const unsigned n = w.cutRows, unit = hot.readUnit() / n;
    const std::size_t rowElements = context.layout().rowElements;
    const auto readLandings = [&](unsigned nOfList, Sequence &program) {
      const auto firstOf = [&](const Tensor &t, std::size_t each) {
        return t.reshape({w.nLists, w.perList(), n * each})
            .slice(0, nOfList, 1)
            .reshape({std::size_t(w.nLists) * nOfList * n, each});
      };
      context.cache.lockstep->read(source.buffer(), firstOf(landing, rowElements),
                                   firstOf(offsets, 1).flatten(), program,
                                   {context.dc, steps::readRows});
    };
    if (!inUnits || unit >= w.perList())
      return readLandings(w.perList(), inner.program);
    inner.begin(landing);
    Sequence all({}, {context.dc, "read_all"});
    readLandings(w.perList(), all);
    Switch some(inner.greatest(units, behindControl()), all, {context.dc, steps::readSome});
    for (unsigned i = 1; i * unit < w.perList(); ++i) {
      Sequence part({}, {context.dc, "read_part"});
      readLandings(i * unit, part);
      some.add(static_cast<std::int32_t>(i), part);
    }
    inner.program.add(some);
  }
  // Every part of a task gets its piece of every row of its list.
  void spread(const Context &inner, const Wave &w, const Tensor &cut, const Tensor &keyPieces,
              const Tensor &valuePieces) const {
    const unsigned d = context.headDim(), n = w.cutRows, nSlices = d / hot.width,
                   nCopies = hot.valueCopies(d, p.parts);
    std::vector<Tensor> from, to;
    for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
      const std::size_t firstLanding = std::size_t(slot / w.listSlots) * w.perList();
      const auto ofRows = [&](std::size_t begin, std::size_t nPieces, std::size_t width) {
        return cut.slice(firstLanding, firstLanding + w.perList())
            .slice(begin, begin + nPieces * n * width, 1)
            .reshape({w.perList(), nPieces, n, width})
            .dimShuffle({1, 0, 2, 3})
            .flatten();
      };
      from.push_back(ofRows(0, HotRows::nPairs, d / HotRows::nPairs).broadcast(hot.nSets, 0));
      to.push_back(keyPieces[slot].flatten());
      from.push_back(ofRows(std::size_t(n) * d, nSlices, hot.width).broadcast(nCopies, 0));
      to.push_back(valuePieces[slot].flatten());
    }
    inner.copy(concat(from), concat(to), "spread_rows");
  }
  // firstMiss {slots, 2}, see the codelet FirstMiss. inUnits: reads `units` units of rows only.
  template <class AddNext>
  void readAndInsert(const Context &inner, const Wave &w, const Tensor &offsets,
                     const Tensor &firstMiss, bool inUnits, const AddNext &addNext) const {
    const unsigned d = context.headDim(), n = w.cutRows, nKeyParts = HotRows::nPairs * hot.nSets,
                   nValueParts = hot.valueParts(d, p.parts);
    const Tensor landing = perLanding(w, HALF, {n, context.layout().rowElements}, "landing"),
                 cut = perLanding(w, HALF, {n * 2 * std::size_t(d)}, "cut_rows");
    read(inner, w, landing, offsets, inUnits);
    const ComputeSet cutting = inner.execute("cut_rows");
    for (unsigned i = 0; i != w.nLandings(); ++i)
      source.addCut(graph, cutting, landingTile(w, i), landing[i].flatten(), cut[i], n, d,
                    hot.width);
    addNext(cutting);
    const Tensor keyPieces = pieces(w, nKeyParts, d / HotRows::nPairs, "key_pieces"),
                 valuePieces = pieces(w, nValueParts, hot.width, "value_pieces");
    spread(inner, w, cut, keyPieces, valuePieces);
    const ComputeSet insert = inner.execute("insert_rows");
    const auto addInsert = [&](unsigned slot, unsigned i, const Tensor &pieces, const Tensor &rows,
                               unsigned set, unsigned setShift) {
      const unsigned part = i % p.parts, width = static_cast<unsigned>(rows.dim(2));
      context.addVertex(insert, "sparq::InsertRows", slot, part,
                        cycles::insertRows(w.ownRows, width, 1u << setShift),
                        "layer"_f = l.layer(slot, part), "wave"_f = wave,
                        "first"_f = firstMiss[slot], "nMisses"_f = misses.n[slot],
                        "places"_f = missPlaces[slot], "pieces"_f = pieces[slot][i],
                        "rows"_f = rows, "fullRows"_f = w.fullRows, "nRows"_f = rows.dim(1),
                        "width"_f = width, "set"_f = set, "setShift"_f = setShift);
    };
    for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
      const unsigned task = context.task(slot);
      for (unsigned i = 0; i != nKeyParts; ++i)
        addInsert(slot, i, keyPieces, l.buffer.keys[task][i], i / HotRows::nPairs, hot.setShift());
      for (unsigned i = 0; i != nValueParts; ++i)
        addInsert(slot, i, valuePieces, l.buffer.values[task][i], 0, 0);
    }
  }

  const HotLayout &l;
  const Context &context;
  Graph &graph;
  const Placement &p;
  const HotRows &hot;
  const unsigned topK, home;
  const JoinedRows &source;
  const Misses misses;
  const Tensor toFetch_;
  Tensor missPlaces;    // {slots, topK}
  Tensor inList, inAll; // {slots, 2}, see the codelet FirstMiss
  // Results of PlanMisses and MoreMisses.
  Tensor left, nListWaves, way;
  Tensor wave, nextWave, moreOfLists, more, units;
};

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
      context.addVertex(
          look, "sparq::FindHot", slot, owner, cycles::findHot(topK, hot.nWays(), hot.nOwners),
          "filled"_f = context.filled(slot, owner), "layer"_f = l.layer(slot, owner),
          "clock"_f = buffer.clock[context.task(slot)][owner], "positions"_f = l.positions[slot],
          "held"_f = l.ofOwner(buffer.held, slot, owner),
          "stamps"_f = l.ofOwner(buffer.stamps, slot, owner), "places"_f = found[slot][owner],
          "nFound"_f = nFound[slot][owner], "topK"_f = topK, "nWays"_f = hot.nWays(),
          "owner"_f = owner, "nOwners"_f = hot.nOwners);
      context.addVertex(merge, "sparq::FreeWays", slot, owner, cycles::freeWays(topK),
                        "nFound"_f = nFound[slot][owner], "nFree"_f = all.nFree[slot][owner],
                        "byEntry"_f = all.byEntry[slot][owner],
                        "byMiss"_f = all.byMiss[slot][owner], "nWays"_f = hot.nWays(),
                        "topK"_f = topK);
    }
    context.addVertex(merge, "sparq::SumFound", slot, l.home, cycles::sumFound(hot.nOwners),
                      "nFound"_f = nFound[slot], "nHits"_f = all.nHits[slot],
                      "nOwners"_f = hot.nOwners);
  }
  l.addMerge(merge, found, l.noPlaces(all.hits, "no_hits"), all.hits, l.hitsFirst);
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
    context.addVertex(cs, "sparq::ListMisses", slot, l.home, cycles::listMisses(l.topK),
                      "filled"_f = context.filled(slot, l.home), "layer"_f = l.layer(slot, l.home),
                      "positions"_f = l.positions[slot], "hits"_f = found.hits[slot],
                      "nHits"_f = found.nHits[slot], "entries"_f = misses.entries[slot],
                      "rows"_f = misses.rows[slot], "nMisses"_f = misses.n[slot], "topK"_f = l.topK,
                      "rowBase"_f = context.layout().keyRow(context.task(slot), 0),
                      "layerRows"_f = context.cache.layerRows());
  // Owners rank their ways beside it, before any miss is known.
  misses.order = l.perOwner({hot.nWays()}, "order_of_ways");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned owner = 0; owner != hot.nOwners; ++owner)
      context.addVertex(cs, "sparq::RankWays", slot, owner, cycles::rankWays(hot.nWays()),
                        "layer"_f = l.layer(slot, owner),
                        "stamps"_f = l.ofOwner(buffer.stamps, slot, owner),
                        "order"_f = misses.order[slot][owner], "nWays"_f = hot.nWays());
  return misses;
}

// Plans the waves beside.
Dealt dealPlaces(const HotLayout &l, const Found &found, const Misses &misses, MissWaves &waves) {
  const Context &context = l.context;
  const HotBuffer &buffer = l.buffer;
  const HotRows &hot = l.hot;
  const Dealt dealt{l.perEntry("hot_places", l.hitsFirst),
                    l.perEntry("miss_places", l.missesFirst)};
  const ComputeSet cs = waves.plan();
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned owner = 0; owner != hot.nOwners; ++owner)
      context.addVertex(
          cs, "sparq::DealPlaces", slot, owner, cycles::dealPlaces(l.topK, hot.nOwners),
          "layer"_f = l.layer(slot, owner), "clock"_f = buffer.clock[context.task(slot)][owner],
          "nMisses"_f = waves.toFetch()[slot], "positions"_f = l.positions[slot],
          "entries"_f = misses.entries[slot], "nFree"_f = found.nFree[slot],
          "order"_f = misses.order[slot][owner], "held"_f = l.ofOwner(buffer.held, slot, owner),
          "stamps"_f = l.ofOwner(buffer.stamps, slot, owner),
          "byEntry"_f = found.byEntry[slot][owner], "byMiss"_f = found.byMiss[slot][owner],
          "nWays"_f = hot.nWays(), "owner"_f = owner, "nOwners"_f = hot.nOwners,
          "ownersShift"_f = log2Of(hot.nOwners));
  const ComputeSet merge = context.execute("merge_dealt");
  waves.addFirst(merge);
  l.addMerge(merge, found.byEntry, found.hits, dealt.places, l.hitsFirst);
  l.addMerge(merge, found.byMiss, l.noPlaces(dealt.missPlaces, "no_places"), dealt.missPlaces,
             l.missesFirst);
  return dealt;
}

} // namespace

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
