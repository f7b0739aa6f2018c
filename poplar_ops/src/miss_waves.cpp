// SPDX-License-Identifier: Apache-2.0
#include "miss_waves.hpp"
#include "codelets/hot_insert.cycles.hpp"
#include "codelets/hot_misses.cycles.hpp"
#include "planning.hpp"
#include "sparq/step_names.hpp"
#include <cmath>
#include <limits>

namespace sparq {

using namespace poplar;
using namespace poplar::program;

MissWaves::MissWaves(const HotLayout &layout, const Misses &missesIn)
    : l(layout), context(layout.context), graph(layout.graph), p(layout.p), hot(layout.hot),
      topK(layout.topK), home(layout.home), source(storeOf<JoinedRows>(context.cache)),
      misses(missesIn), toFetch_(countsToFetch()) {}

unsigned MissWaves::listSlots() const { return ceilDiv(p.slots, hot.nLists); }

// An estimate: of misses of several heads, one may own twice an even share of a list.
unsigned MissWaves::mostOwn() const {
  return std::min(topK, 2 * ceilDiv(hot.listRows(), listSlots()));
}

MissWaves::Wave MissWaves::ofLists() const {
  return {hot.listRows(), listSlots(), hot.nLists, HotRows::cutRows,
          hot.listRows(), mostOwn(),   "list_",    ""};
}

MissWaves::Wave MissWaves::ofAll() const {
  return {hot.listRows(), p.slots, 1, 1, hot.listRows(), mostOwn(), "", ""};
}

MissWaves::Wave MissWaves::ofFew() const {
  return {hot.fewRows, p.slots, 1, 1, hot.listRows(), std::min(topK, hot.fewRows), "few_", "few_"};
}

MissWaves::Wave MissWaves::wide() const {
  return {hot.headRows, 1, p.slots, HotRows::cutRows, hot.headRows, hot.headRows, "wide_", "wide_"};
}

// The wave counter is on one of the last tiles, which are least busy.
unsigned MissWaves::controlTile() const {
  return graph.getTarget().getNumTiles() - 1 - behindControl();
}

unsigned MissWaves::behindControl() const { return graph.getTarget().getNumTiles() < 3 ? 0 : 2; }

// The cost of wide waves, which read all rows that there may be: in rows, as HotRows::waveCost.
unsigned MissWaves::wideCost() const {
  return hot.headRows == 0
             ? std::numeric_limits<unsigned>::max()
             : ceilDiv(topK, hot.headRows) * (p.slots * hot.headRows + HotRows::waveCost);
}

unsigned MissWaves::landingTile(const Wave &w, unsigned landing) const {
  const unsigned nTiles = graph.getTarget().getNumTiles(), n = w.nLandings();
  // Not on the first tiles or the last ones of many slots, which have other work in a wave.
  return n < nTiles ? landing * (nTiles / n) + nTiles / n / 2 : landing % nTiles;
}

// {landings, shape...}, spread over the tiles: a remote copy is fastest when it is spread wide.
Tensor MissWaves::perLanding(const Wave &w, const Type &type, const std::vector<std::size_t> &shape,
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
Tensor MissWaves::pieces(const Wave &w, unsigned n, unsigned width, const char *name) const {
  return context.once(w.own + name, [&] {
    const Tensor t =
        graph.addVariable(HALF, {p.slots, n, w.listRows, width}, {context.dc, w.own + name});
    for (unsigned slot = 0; slot != p.slots; ++slot)
      for (unsigned i = 0; i != n; ++i)
        graph.setTileMapping(t[slot][i], p.tile(slot, i % p.parts));
    return t;
  });
}

Tensor MissWaves::control(const Type &type, const char *name,
                          const std::vector<std::size_t> &shape) const {
  return context.once(name, [&] {
    const Tensor t = graph.addVariable(type, shape, {context.dc, name});
    graph.setTileMapping(t, controlTile());
    return t;
  });
}

Tensor MissWaves::countsToFetch() const {
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

ComputeSet MissWaves::plan() {
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
  const ComputeSet cs = context.execute(steps::planWaves);
  addPlan(cs);
  addFirstRows(cs);
  nListWaves = context.agreed(nListWaves, behindControl());
  return cs;
}

void MissWaves::addPlan(const ComputeSet &cs) const {
  const unsigned nUnits = ceilDiv(hot.listRows(), hot.readUnit());
  addVertex(graph, cs, "sparq::PlanMisses", controlTile(),
            {{"nMisses", toFetch_}, {"left", left}, {"nWaves", nListWaves}, {"way", way}},
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

// Beside other work, for a compute set of its own would cost more than this.
void MissWaves::addMore(const ComputeSet &cs) const {
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

void MissWaves::addFirst(const ComputeSet &cs) {
  addMore(cs);
  inList = l.atHome({2}, "first_in_list");
  inAll = l.atHome({2}, "first_in_all");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    addVertex(graph, cs, "sparq::FirstMiss", context.tile(slot, home),
              {{"nMisses", misses.n.slice(0, std::max(1u, slot))},
               {"nWaves", nListWaves},
               {"inList", inList[slot]},
               {"inAll", inAll[slot]}},
              {{"nBefore", slot}, {"listSlots", listSlots()}, {"waveRows", hot.listRows()}},
              cycles::firstMiss(slot, slot / listSlots()));
}

std::vector<MissWaves::Placed> MissWaves::placements() const {
  std::vector<Placed> all{{l.onPart(home, {hot.listRows()}, "placed_misses"), home, true}};
  const unsigned other = p.parts > 1 ? home - 1 : home;
  if (hot.nLists != 1)
    all.push_back({l.onPart(other, {hot.listRows()}, "placed_of_lists"), other, false});
  return all;
}

void MissWaves::addFirstRows(const ComputeSet &cs) const {
  for (const Placed &placed : placements())
    for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
      const unsigned first = placed.ofAll ? 0 : slot / listSlots() * listSlots(),
                     nBefore = slot - first;
      addVertex(graph, cs, "sparq::PlaceFirst", context.tile(slot, placed.part),
                {{"before", toFetch_.slice(first, first + std::max(1u, nBefore))},
                 {"nMisses", toFetch_[slot]},
                 {"rows", misses.rows[slot]},
                 {"waveRow", placed.rows[slot]}},
                {{"nBefore", nBefore}, {"waveRows", hot.listRows()}},
                cycles::placeFirst(hot.listRows(), mostOwn(), nBefore));
    }
}

void MissWaves::addNextRows(const ComputeSet &cs, const Placed &placed) const {
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    addVertex(graph, cs, "sparq::PlaceMisses", context.tile(slot, placed.part),
              {{"wave", wave},
               {"first", placed.ofAll ? inAll[slot] : inList[slot]},
               {"nMisses", misses.n[slot]},
               {"rows", misses.rows[slot]},
               {"waveRow", placed.rows[slot]}},
              {{"waveRows", hot.listRows()}}, cycles::placeMisses(hot.listRows(), mostOwn()));
}

void MissWaves::read(const Context &inner, const Wave &w, const Tensor &landing,
                     const Tensor &offsets, bool inUnits) const {
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
void MissWaves::spread(const Context &inner, const Wave &w, const Tensor &cut,
                       const Tensor &keyPieces, const Tensor &valuePieces) const {
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
  inner.copy(concat(from), concat(to), {context.dc, "spread_rows"});
}

// firstMiss {slots, 2}, see the codelet FirstMiss. inUnits: reads `units` units of rows only.
template <class AddNext>
void MissWaves::readAndInsert(const Context &inner, const Wave &w, const Tensor &offsets,
                              const Tensor &firstMiss, bool inUnits, const AddNext &addNext) const {
  const unsigned d = context.headDim(), n = w.cutRows, nKeyParts = HotRows::nPairs * hot.nSets,
                 nValueParts = hot.valueParts(d, p.parts);
  const Tensor landing = perLanding(w, HALF, {n, context.layout().rowElements}, "landing"),
               cut = perLanding(w, HALF, {n * 2 * std::size_t(d)}, "cut_rows");
  read(inner, w, landing, offsets, inUnits);
  const ComputeSet cutting = inner.execute("cut_rows");
  for (unsigned i = 0; i != w.nLandings(); ++i)
    source.addCut(graph, cutting, landingTile(w, i), landing[i].flatten(), cut[i], n, d, hot.width);
  addNext(cutting);
  const Tensor keyPieces = pieces(w, nKeyParts, d / HotRows::nPairs, "key_pieces"),
               valuePieces = pieces(w, nValueParts, hot.width, "value_pieces");
  spread(inner, w, cut, keyPieces, valuePieces);
  const ComputeSet insert = inner.execute("insert_rows");
  const auto addInsert = [&](unsigned slot, unsigned i, const Tensor &pieces, const Tensor &rows,
                             unsigned set, unsigned setShift) {
    const unsigned part = i % p.parts, width = static_cast<unsigned>(rows.dim(2));
    addVertex(graph, insert, "sparq::InsertRows", context.tile(slot, part),
              {{"layer", l.layer(slot, part)},
               {"wave", wave},
               {"first", firstMiss[slot]},
               {"nMisses", misses.n[slot]},
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
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    const unsigned task = context.task(slot);
    for (unsigned i = 0; i != nKeyParts; ++i)
      addInsert(slot, i, keyPieces, l.buffer.keys[task][i], i / HotRows::nPairs, hot.setShift());
    for (unsigned i = 0; i != nValueParts; ++i)
      addInsert(slot, i, valuePieces, l.buffer.values[task][i], 0, 0);
  }
}

// Fetches the rows that `placed` lists for each task.
template <class AddNext>
void MissWaves::addSharedWave(const Context &inner, const Wave &w, const Tensor &placed,
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

// Fetches rows for every task by itself, the same number for each.
void MissWaves::addWideWave(const Context &inner, unsigned nWaves) const {
  const Wave w = wide();
  const unsigned n = w.cutRows, nSlots = context.nSlots();
  const Tensor offsets = perLanding(w, UNSIGNED_INT, {n}, "rows_of_wave");
  inner.copy(nextWave, wave, {inner.dc, "next_wave"});
  const ComputeSet list = inner.execute("head_rows");
  for (unsigned i = 0; i != w.nLandings(); ++i) {
    const unsigned slot = std::min(i / w.perList(), nSlots - 1);
    addVertex(graph, list, "sparq::HeadRows", landingTile(w, i),
              {{"wave", wave},
               {"nMisses", misses.n[slot]},
               {"rows", misses.rows[slot]},
               {"offsets", offsets[i]}},
              {{"waveRows", w.listRows}, {"row", i % w.perList() * n}, {"n", n}},
              cycles::headRows(n));
  }
  const Tensor zero = context.once("wide_first", [&] {
    const Tensor t = graph.addConstant(UNSIGNED_INT, {p.slots, 2}, 0u, {context.dc, "wide_first"});
    for (unsigned slot = 0; slot != p.slots; ++slot)
      graph.setTileMapping(t[slot], p.tile(slot, home));
    return t;
  });
  readAndInsert(inner, w, offsets, zero, false, [&](const ComputeSet &cs) {
    if (nWaves != 1)
      addMore(cs); // counts
  });
}

void MissWaves::fetch(const Tensor &missPlacesIn) {
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

} // namespace sparq
