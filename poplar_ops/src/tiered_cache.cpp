// SPDX-License-Identifier: Apache-2.0
#include "planning.hpp"
#include "sparq/tiers.hpp"
#include "tiers.hpp"
#include "vertex_cycles.hpp"
#include <limits>

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

// A variable {nTasks, n, shape...} with element [task][i] on part partOf(i) of the task's slot.
template <class PartOf>
Tensor addOnParts(Graph &graph, const Placement &p, const Type &type, unsigned n,
                  const std::vector<std::size_t> &shape, const PartOf &partOf,
                  const std::string &name) {
  std::vector<std::size_t> full{p.nTasks, n};
  full.insert(full.end(), shape.begin(), shape.end());
  const Tensor t = graph.addVariable(type, full, {name});
  for (unsigned task = 0; task != p.nTasks; ++task)
    for (unsigned i = 0; i != n; ++i)
      graph.setTileMapping(t[task][i], p.tile(task % p.slots, partOf(i) % p.parts));
  return t;
}

unsigned nIndexParts(const Plan &plan) {
  return ceilDiv(plan.layout.capacity, residentLength(plan));
}

} // namespace

unsigned residentLength(const Plan &plan) {
  return partLength(plan.layout.capacity, plan.placement.parts);
}

std::uint64_t tieredCacheBytes(const Plan &plan) {
  const HotRows &hot = plan.hot;
  const std::uint64_t d = plan.shape.headDim,
                      index = plan.layout.columnBytes(residentLength(plan)) * d,
                      rows = hot.rowsOfSet() * d / 2 + std::uint64_t(hot.nSlots) * hot.width * 2;
  return plan.placement.nRounds * plan.layout.nLayers * (index + rows);
}

void addTiers(Graph &graph, Cache &cache) {
  const Plan &plan = cache.plan;
  const Placement &p = plan.placement;
  const HotRows &hot = plan.hot;
  const std::size_t d = plan.shape.headDim, nLayers = plan.layout.nLayers;
  const auto same = [](unsigned i) { return i; };
  cache.index = addOnParts(graph, p, UNSIGNED_INT, nIndexParts(plan),
                           {nLayers, d, plan.layout.columnElements(residentLength(plan))}, same,
                           cache.name + "/index");
  cache.hot.keys =
      addOnParts(graph, p, HALF, hot.nSets * HotRows::nPairs,
                 {nLayers, hot.rowsOfSet(), d / HotRows::nPairs}, same, cache.name + "/hot_keys");
  cache.hot.values = addOnParts(graph, p, HALF, plan.shape.headDim / hot.width,
                                {nLayers, hot.nSlots, hot.width}, same, cache.name + "/hot_values");
  for (Tensor *const t : {&cache.hot.held, &cache.hot.stamps})
    *t = addOnParts(graph, p, UNSIGNED_INT, hot.nOwners, {nLayers, hot.nWays()}, same,
                    cache.name + (t == &cache.hot.held ? "/hot_held" : "/hot_stamps"));
  cache.hot.clock =
      addOnParts(graph, p, UNSIGNED_INT, hot.nOwners, {}, same, cache.name + "/hot_clock");
  cache.hot.misses = addOnParts(
                         graph, p, UNSIGNED_INT, 1, {}, [&](unsigned) { return p.parts - 1; },
                         cache.name + "/hot_misses")
                         .squeeze({1});
  // Nothing is hot, at step 0. The clock is never set back: it counts for all layers.
  for (const Tensor &t : {cache.hot.held, cache.hot.stamps, cache.hot.clock, cache.hot.misses})
    graph.setInitialValue(t, ArrayRef<unsigned>(std::vector<unsigned>(t.numElements(), 0)));
}

Sequence storeRecords(Graph &graph, const Cache &cache, const Tensor &full,
                      const DebugContext &dc) {
  const Plan &plan = cache.plan;
  const Placement &p = plan.placement;
  const CacheLayout &layout = plan.layout;
  const unsigned nBlocks = residentLength(plan) / block;
  const ComputeSet cs = graph.addComputeSet({dc, "store_records"});
  for (unsigned task = 0; task != p.nTasks; ++task)
    for (unsigned part = 0; part != nIndexParts(plan); ++part) {
      const unsigned slot = task % p.slots;
      addVertex(graph, cs, "sparq::StoreRecords", p.tile(slot, part),
                {{"filled", cache.filled[task]},
                 {"full", full[task]},
                 {"layer", cache.layer[slot][part]},
                 {"records", cache.tailIndex[task].flatten()},
                 {"index", cache.index[task][part].flatten()}},
                {{"headDim", plan.shape.headDim},
                 {"indexBits", layout.indexBits},
                 {"columnWords", static_cast<unsigned>(cache.index.dim(4))},
                 {"firstBlock", part * nBlocks},
                 {"nBlocks", nBlocks}},
                cycles::storeRecords(plan.shape.headDim, layout.columnElements(block)));
    }
  return Sequence({Execute(cs, {dc, "store_records"})}, {dc, "store_records"});
}

void insertNewest(Graph &graph, const Cache &cache, const Tensor &key, const Tensor &value,
                  const Tensor &active, Sequence &program, const DebugContext &dc) {
  const Plan &plan = cache.plan;
  const Placement &p = plan.placement;
  const HotRows &hot = plan.hot;
  const unsigned d = plan.shape.headDim;
  const Tensor slots = addOnParts(
      graph, p, UNSIGNED_INT, hot.nOwners, {}, [](unsigned i) { return i; },
      cache.name + "/newest_slots");
  const ComputeSet deal = graph.addComputeSet({dc, "deal_newest"}),
                   insert = graph.addComputeSet({dc, "insert_newest"});
  for (unsigned task = 0; task != p.nTasks; ++task) {
    const unsigned slot = task % p.slots;
    for (unsigned owner = 0; owner != hot.nOwners; ++owner)
      addVertex(graph, deal, "sparq::DealNewest", p.tile(slot, owner),
                {{"filled", cache.filled[task]},
                 {"active", active[task]},
                 {"layer", cache.layer[slot][owner]},
                 {"clock", cache.hot.clock[task][owner]},
                 {"held", cache.hot.held[task][owner].flatten()},
                 {"stamps", cache.hot.stamps[task][owner].flatten()},
                 {"place", slots[task][owner]}},
                {{"nWays", hot.nWays()},
                 {"owner", owner},
                 {"nOwners", hot.nOwners},
                 {"byPosition", hot.policy == HotPolicy::oldest}},
                cycles::dealNewest(hot.nWays()));
    const auto addInsert = [&](unsigned part, const Tensor &piece, const Tensor &rows, unsigned set,
                               unsigned setShift) {
      addVertex(graph, insert, "sparq::InsertNewest", p.tile(slot, part % p.parts),
                {{"layer", cache.layer[slot][part % p.parts]},
                 {"places", slots[task]},
                 {"piece", piece.flatten()},
                 {"rows", rows.flatten()}},
                {{"nOwners", hot.nOwners},
                 {"nRows", static_cast<unsigned>(rows.dim(1))},
                 {"width", static_cast<unsigned>(rows.dim(2))},
                 {"set", set},
                 {"setShift", setShift}},
                cycles::insertNewest(hot.nOwners, static_cast<unsigned>(rows.dim(2))));
    };
    const Tensor pairs = key[task].reshape({d / 8, HotRows::nPairs, 2});
    for (unsigned i = 0; i != hot.nSets * HotRows::nPairs; ++i)
      addInsert(i, pairs.slice(i % HotRows::nPairs, i % HotRows::nPairs + 1, 1),
                cache.hot.keys[task][i], i / HotRows::nPairs, hot.setShift());
    for (unsigned i = 0; i != d / hot.width; ++i)
      addInsert(i, value[task].slice(i * hot.width, (i + 1) * hot.width), cache.hot.values[task][i],
                0, 0);
  }
  program.add(Execute(deal, {dc, "deal_newest"}));
  program.add(Execute(insert, {dc, "insert_newest"}));
}

void forgetHot(Graph &graph, const Cache &cache, Sequence &program, const DebugContext &dc) {
  forgetHot(graph, cache, 0, cache.plan.shape.nTasks(), program, dc);
}

void forgetHot(Graph &graph, const Cache &cache, unsigned firstTask, unsigned endTask,
               Sequence &program, const DebugContext &dc) {
  const Placement &p = cache.plan.placement;
  const HotRows &hot = cache.plan.hot;
  const ComputeSet cs = graph.addComputeSet({dc, "forget_hot"});
  for (unsigned task = firstTask; task != endTask; ++task)
    for (unsigned owner = 0; owner != hot.nOwners; ++owner)
      addVertex(graph, cs, "sparq::ForgetHot", p.tile(task % p.slots, owner),
                {{"layer", cache.layer[task % p.slots][owner]},
                 {"held", cache.hot.held[task][owner].flatten()},
                 {"stamps", cache.hot.stamps[task][owner].flatten()}},
                {{"nWays", hot.nWays()}}, cycles::forgetHot(hot.nWays()));
  program.add(Execute(cs, {dc, "forget_hot"}));
}

namespace {

// Rows of one block of every part, or of the open block of every task, by component.
class BlockReader {
public:
  BlockReader(Graph &graphIn, const Cache &cacheIn, const DebugContext &dcIn)
      : graph(graphIn), cache(cacheIn), plan(cacheIn.plan), p(plan.placement),
        nParts(nIndexParts(plan)), dc(dcIn), ofParts(*this, nParts, 0),
        ofSlots(*this, 1, p.parts - 1) {}

  // What follows is for the tasks of this round.
  void setRound(unsigned round) {
    nSlots = p.nActive(round);
    firstTask = p.firstTask(round);
  }

  // Block `number` of each part, a counter, into the index.
  Sequence indexBlocks(const Tensor &number) const {
    Sequence program({}, {dc, "index_block"});
    const unsigned d = plan.shape.headDim, length = residentLength(plan), nBlocks = length / block;
    const ComputeSet offsets = graph.addComputeSet({dc, "block_offsets"}),
                     index = graph.addComputeSet({dc, "index_block"});
    const Staging &staging = ofParts;
    for (unsigned slot = 0; slot != nSlots; ++slot)
      for (unsigned part = 0; part != nParts; ++part)
        addVertex(graph, offsets, "sparq::BlockOffsets", p.tile(slot, part),
                  {{"layer", cache.layer[slot][part]},
                   {"block", number},
                   {"rows", staging.offsets[slot][part]}},
                  rowSettings(slot, part * length), cycles::blockOffsets(block));
    program.add(Execute(offsets, {dc, "block_offsets"}));
    staging.read(program);
    for (unsigned slot = 0; slot != nSlots; ++slot)
      for (unsigned part = 0; part != nParts; ++part) {
        const unsigned task = firstTask + slot;
        addVertex(graph, index, "sparq::IndexBlock", p.tile(slot, part),
                  {{"filled", cache.filled[task]},
                   {"layer", cache.layer[slot][part]},
                   {"block", number},
                   {"columns", staging.columns[slot][part].flatten()},
                   {"index", cache.index[task][part].flatten()}},
                  {{"headDim", d},
                   {"indexBits", plan.layout.indexBits},
                   {"columnWords", static_cast<unsigned>(cache.index.dim(4))},
                   {"firstBlock", part * nBlocks},
                   {"nBlocks", nBlocks}},
                  cycles::fillIndex(d, 1));
      }
    program.add(Execute(index, {dc, "index_block"}));
    return program;
  }

  // The block that is being filled, into the tail.
  Sequence openBlocks() const {
    Sequence program({}, {dc, "open_block"});
    const ComputeSet offsets = graph.addComputeSet({dc, "open_block_offsets"});
    const unsigned part = p.parts - 1;
    const Staging &staging = ofSlots;
    for (unsigned slot = 0; slot != nSlots; ++slot)
      addVertex(graph, offsets, "sparq::OpenBlockOffsets", p.tile(slot, part),
                {{"filled", cache.filled[firstTask + slot]},
                 {"layer", cache.layer[slot][part]},
                 {"rows", staging.offsets[slot][0]}},
                rowSettings(slot, 0), cycles::blockOffsets(block));
    program.add(Execute(offsets, {dc, "open_block_offsets"}));
    staging.read(program);
    program.add(Copy(staging.columns.slice(0, nSlots).squeeze({1}),
                     cache.tail.slice(firstTask, firstTask + nSlots, 0), false,
                     {dc, "open_block"}));
    return program;
  }

private:
  // Rows of so many blocks of each slot, the first of them on that part.
  struct Staging {
    const BlockReader &reader;
    unsigned nBlocks, firstPart;
    Tensor offsets; // {slots, blocks, 64} UNSIGNED_INT
    Tensor rows;    // {slots, blocks, 64, row} HALF
    Tensor columns; // {slots, blocks, headDim, 64} HALF

    Staging(const BlockReader &readerIn, unsigned n, unsigned first)
        : reader(readerIn), nBlocks(n), firstPart(first) {
      const std::size_t d = reader.plan.shape.headDim;
      offsets = add(UNSIGNED_INT, {block}, "block_rows");
      rows = add(HALF, {block, reader.plan.layout.rowElements()}, "rows_of_block");
      columns = add(HALF, {d, block}, "columns_of_block");
    }
    Tensor add(const Type &type, const std::vector<std::size_t> &shape, const char *name) const {
      std::vector<std::size_t> full{reader.p.slots, nBlocks};
      full.insert(full.end(), shape.begin(), shape.end());
      const Tensor t = reader.graph.addVariable(type, full, {reader.dc, name});
      for (unsigned slot = 0; slot != reader.p.slots; ++slot)
        for (unsigned i = 0; i != nBlocks; ++i)
          reader.graph.setTileMapping(t[slot][i], reader.p.tile(slot, firstPart + i));
      return t;
    }
    // Reads the rows and cuts them into columns.
    void read(Sequence &program) const {
      const unsigned d = reader.plan.shape.headDim;
      const Tensor active = offsets.slice(0, reader.nSlots);
      const CacheLayout &layout = reader.plan.layout;
      readRemote(reader.cache.rows,
                 rows.slice(0, reader.nSlots).reshape({active.numElements(), layout.rowElements()}),
                 active.flatten(), program, {reader.dc, "read_rows"});
      const bool coded = layout.rowBits == 8;
      const ComputeSet cs = reader.graph.addComputeSet({reader.dc, "row_columns"});
      for (unsigned slot = 0; slot != reader.nSlots; ++slot)
        for (unsigned i = 0; i != nBlocks; ++i)
          addVertex(reader.graph, cs, coded ? "sparq::CodeColumns" : "sparq::RowColumns",
                    reader.p.tile(slot, firstPart + i),
                    {{"rows", rows[slot][i].flatten()}, {"columns", columns[slot][i].flatten()}},
                    {{"headDim", d}},
                    coded ? cycles::codeColumns(d) : cycles::fillColumns(d, block));
      program.add(Execute(cs, {reader.dc, "row_columns"}));
    }
  };

  std::vector<Setting> rowSettings(unsigned slot, unsigned firstPosition) const {
    const CacheLayout &layout = plan.layout;
    const unsigned task = firstTask + slot;
    return {{"firstRow", static_cast<unsigned>(layout.keyRow(task, firstPosition))},
            {"lastRow", static_cast<unsigned>(layout.keyRow(task, layout.capacity - 1))},
            {"layerRows", cache.layerRows()}};
  }

  Graph &graph;
  const Cache &cache;
  const Plan &plan;
  const Placement &p;
  const unsigned nParts;
  unsigned nSlots = 0, firstTask = 0;
  const DebugContext &dc;
  const Staging ofParts, ofSlots;
};

} // namespace

void indexRows(Graph &graph, const Cache &cache, Sequence &program, const DebugContext &dc) {
  const Plan &plan = cache.plan;
  const unsigned nBlocks = residentLength(plan) / block;
  const Tensor number = graph.addVariable(UNSIGNED_INT, {}, {dc, "block"}),
               before = graph.addConstant(UNSIGNED_INT, {}, std::numeric_limits<unsigned>::max(),
                                          {dc, "before_first_block"});
  graph.setTileMapping(number, 0);
  graph.setTileMapping(before, 0);
  const ComputeSet next = graph.addComputeSet({dc, "next_block"});
  addVertex(graph, next, "sparq::NextBlock", 0, {{"block", number}}, {}, cycles::nextBlock());
  Sequence body({Execute(next, {dc, "next_block"})}, {dc, "blocks"});
  BlockReader reader(graph, cache, dc);
  for (unsigned round = 0; round != plan.placement.nRounds; ++round) {
    reader.setRound(round);
    body.add(reader.indexBlocks(number));
    program.add(reader.openBlocks());
  }
  program.add(Copy(before, number, false, {dc, "first_block"}));
  program.add(Repeat(nBlocks, body, {dc, "blocks"}));
}

} // namespace sparq
