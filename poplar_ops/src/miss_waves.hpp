// SPDX-License-Identifier: Apache-2.0
//
// Rows of misses, fetched from streaming memory wave by wave (docs/design_ipu.md, Three tiers).
// Each row lands on one of many tiles and is cut into pieces there; the pieces go to the parts of
// the tasks that share the wave, which keep those of their own rows.
#pragma once

#include "hot_rows.hpp"
#include "stores/rows.hpp"

namespace sparq {

class MissWaves {
public:
  MissWaves(const HotLayout &layout, const Misses &misses);

  // {slots}: how many rows each task fetches: those that were counted, or that a plan assumes.
  const poplar::Tensor &toFetch() const { return toFetch_; }
  // Adds the step that decides which waves follow and places the rows of the first one. Places are
  // dealt in the same compute set, which it returns.
  poplar::ComputeSet plan();
  // Adds what the first wave needs beside other work: whether there is one, and where the misses of
  // each task begin. Behind plan().
  void addFirst(const poplar::ComputeSet &cs);
  // Adds all waves. missPlaces {slots, topK}: places of misses, by number.
  void fetch(const poplar::Tensor &missPlaces);

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
  Wave ofLists() const; // as many rows of each list
  Wave ofAll() const;   // as many rows as one list of ofLists, of any task, a row to a tile
  Wave ofFew() const;   // the last rows of a step, where they are few
  Wave wide() const;    // every task its own rows

  // The rows of each task in the next wave, by number of the row: {slots, listRows} on one part.
  // Those of waves of lists and of all are made side by side, before it is known which comes next.
  struct Placed {
    poplar::Tensor rows;
    unsigned part;
    bool ofAll;
  };
  std::vector<Placed> placements() const;

  unsigned listSlots() const;
  unsigned mostOwn() const;
  unsigned wideCost() const;
  unsigned landingTile(const Wave &w, unsigned landing) const;
  poplar::Tensor perLanding(const Wave &w, const poplar::Type &type,
                            const std::vector<std::size_t> &shape, const char *name) const;
  poplar::Tensor pieces(const Wave &w, unsigned n, unsigned width, const char *name) const;
  unsigned behindControl() const;
  unsigned controlTile() const;
  poplar::Tensor control(const poplar::Type &type, const char *name,
                         const std::vector<std::size_t> &shape = {}) const;
  poplar::Tensor countsToFetch() const;

  void addPlan(const poplar::ComputeSet &cs) const;
  void addFirstRows(const poplar::ComputeSet &cs) const;
  void addMore(const poplar::ComputeSet &cs) const;
  void addNextRows(const poplar::ComputeSet &cs, const Placed &placed) const;
  // The bodies of loops. addNext(cs) adds what the wave after this one needs.
  template <class AddNext>
  void addSharedWave(const Context &inner, const Wave &w, const poplar::Tensor &placed,
                     const poplar::Tensor &first, const AddNext &addNext) const;
  void addWideWave(const Context &inner, unsigned nWaves) const;
  void read(const Context &inner, const Wave &w, const poplar::Tensor &landing,
            const poplar::Tensor &offsets, bool inUnits) const;
  void spread(const Context &inner, const Wave &w, const poplar::Tensor &cut,
              const poplar::Tensor &keyPieces, const poplar::Tensor &valuePieces) const;
  template <class AddNext>
  void readAndInsert(const Context &inner, const Wave &w, const poplar::Tensor &offsets,
                     const poplar::Tensor &firstMiss, bool inUnits, const AddNext &addNext) const;

  const HotLayout &l;
  const Context &context;
  poplar::Graph &graph;
  const Placement &p;
  const HotRows &hot;
  const unsigned topK, home;
  const JoinedRows &source;
  const Misses misses;
  const poplar::Tensor toFetch_;
  poplar::Tensor missPlaces;    // {slots, topK}
  poplar::Tensor inList, inAll; // {slots, 2}, see the codelet FirstMiss
  // Results of PlanMisses and MoreMisses.
  poplar::Tensor left, nListWaves, way;
  poplar::Tensor wave, nextWave, moreOfLists, more, units;
};

} // namespace sparq
