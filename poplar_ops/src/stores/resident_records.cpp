// SPDX-License-Identifier: Apache-2.0
#include "codelets/cache.cycles.hpp"
#include "codelets/scores.cycles.hpp"
#include "index.hpp"
#include "rows.hpp"
#include "sparq/cache.hpp"
#include "sparq/step_names.hpp"
#include <algorithm>

namespace sparq {

namespace {

// Parts beyond those that keep full blocks, most of which are left for other work than positions:
// sixteen share the scores of the open block, four positions each, and one brings them together.
constexpr unsigned openParts = 56;

unsigned nIndexParts(const Plan &plan) {
  return ceilDiv(plan.layout.capacity, ResidentRecords::partPositions(plan));
}

// The records of blocks that an append has filled, from the tail to the parts that keep them; full
// {nTasks}.
Sequence storeRecords(const Append &step, const ResidentRecords &store, const Tensor &full) {
  const Cache &cache = step.cache;
  const Plan &plan = cache.plan;
  const Placement &p = plan.placement;
  const CacheLayout &layout = plan.layout;
  const unsigned nBlocks = ResidentRecords::partPositions(plan) / block;
  Sequence program({}, {step.dc, "store_records"});
  const ComputeSet cs = step.within(program).execute("store_records");
  for (unsigned task = 0; task != p.nTasks; ++task)
    for (unsigned part = 0; part != nIndexParts(plan); ++part) {
      const unsigned slot = task % p.slots;
      addVertex(step.graph, cs, "sparq::StoreRecords", p.tile(slot, part),
                cycles::storeRecords(layout.indexDim, layout.columnElements(block)),
                "filled"_f = cache.filled[task], "full"_f = full[task],
                "layer"_f = cache.layer[slot][part], "records"_f = store.records()[task],
                "index"_f = store.index()[task][part], "nComponents"_f = layout.indexDim,
                "indexBits"_f = layout.indexBits, "columnWords"_f = store.index().dim(4),
                "firstBlock"_f = part * nBlocks, "nBlocks"_f = nBlocks);
    }
  return program;
}

// Rows of one block of every part, or of the open block of every task, by component.
class BlockReader : Steps {
public:
  BlockReader(const Steps &steps, const ResidentRecords &storeIn)
      : Steps(steps), store(storeIn), source(storeOf<JoinedRows>(cache)), plan(cache.plan),
        p(plan.placement), nParts(nIndexParts(plan)), ofParts(*this, nParts, 0),
        ofSlots(*this, 1, p.parts - 1) {}

  // What follows is for the tasks of this round.
  void setRound(unsigned round) {
    nSlots = p.nActive(round);
    firstTask = p.firstTask(round);
  }

  // Adds the block of each part at position `number` to the index.
  Sequence indexBlocks(const Tensor &number) const {
    Sequence body({}, {dc, "index_block"});
    const Steps steps = within(body);
    const unsigned d = plan.layout.indexDim, length = ResidentRecords::partPositions(plan),
                   nBlocks = length / block;
    const ComputeSet offsets = steps.execute("block_offsets");
    const Staging &staging = ofParts;
    for (unsigned slot = 0; slot != nSlots; ++slot)
      for (unsigned part = 0; part != nParts; ++part)
        addVertex(graph, offsets, "sparq::BlockOffsets", p.tile(slot, part),
                  cycles::blockOffsets(block), "layer"_f = cache.layer[slot][part],
                  "position"_f = number, "rows"_f = staging.offsets[slot][part],
                  rowSettings(slot, part * length));
    staging.read(steps);
    const ComputeSet index = steps.execute("index_block");
    for (unsigned slot = 0; slot != nSlots; ++slot)
      for (unsigned part = 0; part != nParts; ++part) {
        const unsigned task = firstTask + slot;
        addVertex(graph, index, "sparq::IndexBlock", p.tile(slot, part), cycles::fillIndex(d, 1),
                  "filled"_f = cache.filled[task], "layer"_f = cache.layer[slot][part],
                  "position"_f = number, "columns"_f = staging.columns[slot][part],
                  "index"_f = store.index()[task][part], "nComponents"_f = d,
                  "indexBits"_f = plan.layout.indexBits, "columnWords"_f = store.index().dim(4),
                  "firstBlock"_f = part * nBlocks, "nBlocks"_f = nBlocks);
      }
    return body;
  }

  // The block that is being filled, into the tail.
  Sequence openBlocks() const {
    Sequence body({}, {dc, "open_block"});
    const Steps steps = within(body);
    const ComputeSet offsets = steps.execute("open_block_offsets");
    const unsigned part = p.parts - 1;
    const Staging &staging = ofSlots;
    for (unsigned slot = 0; slot != nSlots; ++slot)
      addVertex(graph, offsets, "sparq::BlockOffsets", p.tile(slot, part),
                cycles::blockOffsets(block), "position"_f = cache.filled[firstTask + slot],
                "layer"_f = cache.layer[slot][part], "rows"_f = staging.offsets[slot][0],
                rowSettings(slot, 0));
    staging.read(steps);
    steps.copy(staging.columns.slice(0, nSlots).squeeze({1}),
               store.tail().slice(firstTask, firstTask + nSlots, 0), "open_block");
    return body;
  }

private:
  // Rows of so many blocks of each slot, the first of them on that part.
  struct Staging {
    const BlockReader &reader;
    unsigned nBlocks, firstPart;
    Tensor offsets; // {slots, blocks, 64} UNSIGNED_INT
    Tensor rows;    // {slots, blocks, 64, row} HALF
    Tensor columns; // {slots, blocks, indexDim, 64} HALF

    Staging(const BlockReader &readerIn, unsigned n, unsigned first)
        : reader(readerIn), nBlocks(n), firstPart(first) {
      const std::size_t d = reader.plan.layout.indexDim;
      offsets = add(UNSIGNED_INT, {block}, "block_rows");
      rows = add(HALF, {block, reader.plan.layout.rowElements}, "rows_of_block");
      columns = add(HALF, {d, block}, "columns_of_block");
    }
    Tensor add(const Type &type, const std::vector<std::size_t> &shape, const char *name) const {
      return addOnParts(reader.graph, reader.p, type, reader.p.slots, nBlocks, shape,
                        {reader.dc, name}, [&](unsigned i) { return firstPart + i; });
    }
    // Reads the rows and cuts them into columns.
    void read(const Steps &steps) const {
      const Tensor active = offsets.slice(0, reader.nSlots);
      const CacheLayout &layout = reader.plan.layout;
      reader.cache.lockstep->read(
          reader.source.buffer(),
          rows.slice(0, reader.nSlots).reshape({active.numElements(), layout.rowElements}),
          active.flatten(), steps.program, {reader.dc, steps::readRows});
      const ComputeSet cs = steps.execute("row_columns");
      for (unsigned slot = 0; slot != reader.nSlots; ++slot)
        for (unsigned i = 0; i != nBlocks; ++i)
          reader.source.addColumns(reader.graph, cs, reader.p.tile(slot, firstPart + i),
                                   rows[slot][i].flatten(), columns[slot][i].flatten(), layout);
    }
  };

  Fields rowSettings(unsigned slot, unsigned firstPosition) const {
    const CacheLayout &layout = plan.layout;
    const unsigned task = firstTask + slot;
    return {"firstRow"_f = layout.keyRow(task, firstPosition),
            "lastRow"_f = layout.keyRow(task, layout.capacity - 1),
            "layerRows"_f = cache.layerRows()};
  }

  const ResidentRecords &store;
  const JoinedRows &source;
  const Plan &plan;
  const Placement &p;
  const unsigned nParts;
  unsigned nSlots = 0, firstTask = 0;
  const Staging ofParts, ofSlots;
};

// The device makes the index, from the rows that the host wrote.
class HostResidentRecords final : public HostStore {
public:
  HostResidentRecords(const HostTail &tail, const HostProgram &rebuild)
      : tail_(tail), rebuild_(rebuild) {}
  void written(Engine &engine) override { rebuild_.run(engine); }
  void reset(Engine &engine) override { tail_.write(engine, tail_.empty()); }

private:
  HostTail tail_;
  HostProgram rebuild_;
};

} // namespace

void ResidentRecords::layOut(const Request &request, CacheLayout &layout) {
  layout.chunk = block;
  layout.capacity = roundUp(request.shape.capacity, block);
}

// A part for each block. With fewer than the usual ones they have more to do beside it.
unsigned ResidentRecords::mostParts(const Request &request) {
  return std::max(usualParts, ceilDiv(request.shape.capacity, block)) + openParts;
}

TileNeed ResidentRecords::need(const Plan &plan) {
  const CacheLayout &layout = plan.layout;
  return {Index::need(plan).working, std::uint64_t(plan.placement.nRounds) * layout.nLayers *
                                         layout.indexDim *
                                         layout.columnBytes(ResidentRecords::partPositions(plan))};
}

ResidentRecords::ResidentRecords(Graph &graph, const Cache &cache, bool)
    : Index(graph, cache),
      index_(addOnParts(graph, cache.plan.placement, UNSIGNED_INT, cache.plan.placement.nTasks,
                        nIndexParts(cache.plan),
                        {cache.layout().nLayers, cache.layout().indexDim,
                         cache.layout().columnElements(partPositions(cache.plan))},
                        cache.name + "/index")) {}

void ResidentRecords::appended(const Append &step, const Tensor &full) const {
  Sequence program({}, {step.dc, "quantise"});
  const Tensor chunkFull = addQuantise(step, full, program); // a chunk is a block
  program.add(storeRecords(step, *this, chunkFull));
  addIfAny(step, full, program, "block");
}

// Where elements were replaced, block by block on all parts at once.
void ResidentRecords::filled(const Steps &steps, const Tensor &replaced) const {
  Sequence index({}, {steps.dc, "index"});
  addRebuild(steps.within(index));
  addIfAny(steps, replaced, index, "index");
}

std::shared_ptr<HostStore> ResidentRecords::host(const HostSite &site) const {
  const Cache &cache = site.cache;
  Sequence rebuild;
  loadLayer(cache, rebuild, {cache.name});
  addRebuild({site.graph, cache, rebuild, {cache.name}});
  storeLayer(cache, rebuild, {cache.name});
  return std::make_shared<HostResidentRecords>(HostTail(site, *this),
                                               HostProgram(site.programs, rebuild));
}

void ResidentRecords::addRebuild(const Steps &steps) const {
  Graph &graph = steps.graph;
  const Cache &cache = steps.cache;
  Sequence &program = steps.program;
  const DebugContext &dc = steps.dc;
  const Plan &plan = cache.plan;
  const unsigned nBlocks = partPositions(plan) / block;
  const Tensor number = addOnTile(graph, 0, UNSIGNED_INT, {}, {dc, "block"}),
               before = graph.addConstant(UNSIGNED_INT, {}, 0u - block, {dc, "before_first_block"});
  graph.setTileMapping(before, 0);
  Sequence body({}, {dc, "blocks"});
  const ComputeSet next = steps.within(body).execute("next_block");
  addVertex(graph, next, "sparq::NextBlock", 0, cycles::nextBlock(), "position"_f = number);
  BlockReader reader(steps, *this);
  for (unsigned round = 0; round != plan.placement.nRounds; ++round) {
    reader.setRound(round);
    body.add(reader.indexBlocks(number));
    program.add(reader.openBlocks());
  }
  steps.copy(before, number, "first_block");
  program.add(Repeat(nBlocks, body, {dc, "blocks"}));
}

} // namespace sparq
