// SPDX-License-Identifier: Apache-2.0
#include "sparq/cache.hpp"
#include "context.hpp"
#include "layers.hpp"
#include "planning.hpp"
#include "remote_copy.hpp"
#include "sparq/remote_rows.hpp"
#include "steps.hpp"
#include "tiers.hpp"
#include "vertex_cycles.hpp"
#include "window_history.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

// What says which layer it is.
void addLayerNumber(Graph &graph, Cache &cache) {
  const Placement &p = cache.plan.placement;
  if (cache.layout().nLayers != 1) {
    cache.layerNumber = graph.addVariable(UNSIGNED_INT, {}, {cache.name + "/layer_number"});
    graph.setTileMapping(cache.layerNumber, 0);
    cache.layer = addPerPart(graph, p, UNSIGNED_INT, p.parts, {}, {cache.name + "/layer"});
    return;
  }
  cache.layer = addZeroPerPart(graph, p, {cache.name + "/layer"});
}

Cache allocate(Graph &graph, const Plan &plan, const std::string &name, bool hostWrites) {
  const Shape &shape = plan.shape;
  const Placement &p = plan.placement;
  const CacheLayout &layout = plan.layout;
  const unsigned nTasks = shape.nTasks(), d = shape.headDim;
  Cache cache;
  cache.name = name;
  cache.plan = plan;
  addLayerNumber(graph, cache);
  // {nTasks, extent, inner} of the layer that is being worked on, and of all layers if there are
  // several.
  const auto state = [&](const Type &type, std::size_t extent, std::size_t piece, std::size_t inner,
                         const char *what, Tensor &stored) {
    if (layout.nLayers != 1)
      stored = addSliced(graph, p, type, nTasks, extent, piece, inner * layout.nLayers,
                         {name + what + "_of_layers"});
    return addSliced(graph, p, type, nTasks, extent, piece, inner, {name + what});
  };
  cache.filled = state(UNSIGNED_INT, 1, 1, 1, "/filled", cache.stored.filled).reshape({nTasks});
  if (plan.resident) {
    const auto positions = [&](const char *what) {
      return addSliced(graph, p, HALF, nTasks, layout.capacity, plan.attention.front().waves.length,
                       d, {name + what});
    };
    cache.keys = positions("/keys");
    cache.values = positions("/values");
    return cache;
  }
  const auto buffer = [&](const char *what, const Type &type, std::size_t width,
                          std::size_t nRows) {
    const std::size_t rowBytes = width * graph.getTarget().getTypeSize(type);
    const unsigned nTiles = graph.getTarget().getNumTiles();
    const std::size_t nSpare = hostWrites ? RemoteRows::batchSize(nRows, rowBytes, nTiles) : 0;
    return graph.addRemoteBuffer(name + what, type, width, nRows + nSpare);
  };
  cache.rows = buffer("/rows", HALF, layout.rowElements(), layout.nLayers * layout.layerRows());
  if (layout.chunk == 0)
    return cache;
  if (layout.tiered)
    addTiers(graph, cache);
  else
    cache.keyColumns =
        buffer("/key_columns", columnType(layout), layout.columnElements(layout.chunk),
               layout.nLayers * layout.layerColumns(p.slots));
  const unsigned n = layout.tailComponents;
  cache.valueSum = state(FLOAT, d, p.width, 1, "/value_sum", cache.stored.valueSum).squeeze({2});
  cache.tail = state(HALF, d, n, layout.tailWidth(), "/tail", cache.stored.tail);
  if (layout.quantised())
    cache.tailIndex = state(columnType(layout), d, n, layout.columnElements(layout.chunk),
                            "/tail_index", cache.stored.tailIndex);
  return cache;
}

} // namespace

Cache createCache(Graph &graph, const Plan &plan, const std::string &name, bool hostWrites) {
  Cache cache = allocate(graph, plan, name, hostWrites);
  if (plan.history.nRecent != 0)
    addHistory(graph, cache);
  if (plan.layout.nLayers != 1)
    addLayerFunctions(graph, cache);
  return cache;
}

namespace {

// {nTasks} from {batch}: every KV head of an element is active with it. Copied, so that each slot
// has its own on its home tile.
Tensor activePerTask(Graph &graph, const Cache &cache, const Tensor &active, Sequence &program,
                     const DebugContext &dc) {
  const Shape &shape = cache.plan.shape;
  const Tensor perTask =
      addSliced(graph, cache.plan.placement, UNSIGNED_INT, shape.nTasks(), 1, 1, 1, {dc, "active"})
          .reshape({shape.nTasks()});
  program.add(Copy(active.expand({1}).broadcast(shape.nKvHeads, 1).flatten(), perTask, false,
                   {dc, "active"}));
  return perTask;
}

// One position of every task.
struct NewRows {
  Tensor keys, values; // {nTasks, headDim} HALF
  Tensor rows;         // {nTasks, row} HALF, as streaming memory has them where it has both in one
};

NewRows makeNewRows(Graph &graph, const Cache &cache, const Tensor &key, const Tensor &value,
                    Sequence &program, const DebugContext &dc) {
  const Placement &p = cache.plan.placement;
  const unsigned nTasks = cache.plan.shape.nTasks(), d = cache.plan.shape.headDim;
  const Tensor keys = key.reshape({nTasks, d}), values = value.reshape({nTasks, d});
  if (cache.layout().rowBits == 16)
    return {keys, values, concat(keys, values, 1)};
  constexpr unsigned width = 32; // two groups of a scale each: a part's work
  const RowRounder rounder(
      graph, cache.layout(), nTasks, width,
      [&](unsigned task, unsigned component) {
        return p.tile(task % p.slots, component / width % p.parts);
      },
      dc);
  const RoundedRows rounded = rounder.round({{0, nTasks}}, keys, values, program, dc);
  return {rounded.keys, rounded.values, rounded.rows};
}

void addRowWrites(Graph &graph, const Cache &cache, const NewRows &newRows, const Tensor &active,
                  Sequence &program, const DebugContext &dc) {
  const Shape &shape = cache.plan.shape;
  const Placement &p = cache.plan.placement;
  const CacheLayout &layout = cache.layout();
  const unsigned nTasks = shape.nTasks();
  // {nTasks, 2}: the row of the key, the row of the value.
  const Tensor rows =
      addSliced(graph, p, UNSIGNED_INT, nTasks, 1, 1, 2, {dc, "append_rows"}).squeeze({1});
  const ComputeSet cs = graph.addComputeSet({dc, "append_offsets"});
  for (unsigned task = 0; task != nTasks; ++task)
    addVertex(graph, cs, "sparq::AppendOffsets", p.home(task % p.slots),
              {{"filled", cache.filled[task]},
               {"active", active[task]},
               {"layer", cache.layer[task % p.slots][0]},
               {"rows", rows[task]}},
              {{"rowBase", static_cast<unsigned>(layout.keyRow(task, 0))},
               {"layerRows", cache.layerRows()},
               {"scratchRow", static_cast<unsigned>(layout.scratchRow(task))},
               {"valueRow", static_cast<unsigned>(layout.valueRow())}},
              cycles::appendOffsets());
  program.add(Execute(cs, {dc, "append_offsets"}));
  if (layout.tiered)
    writeRemote(cache.rows, newRows.rows, rows.slice(0, 1, 1).flatten(), program,
                {dc, "write_rows"});
  else
    writeRemote(cache.rows, concat(newRows.keys, newRows.values, 0),
                rows.dimShuffle({1, 0}).flatten(), program, {dc, "write_rows"});
}

// Full chunks of key columns to streaming memory, round by round.
Sequence flushProgram(Graph &graph, const Cache &cache, const Tensor &full,
                      const DebugContext &dc) {
  const Placement &p = cache.plan.placement;
  const CacheLayout &layout = cache.plan.layout;
  const unsigned d = cache.plan.shape.headDim;
  const std::size_t rowSize = layout.columnElements(layout.chunk);
  const Tensor tail = layout.quantised() ? cache.tailIndex : cache.tail; // {nTasks, headDim, row}
  const Tensor rows =
      addSliced(graph, p, UNSIGNED_INT, p.slots, 1, 1, d, {dc, "flush_rows"}).squeeze({1});
  Sequence flush({}, {dc, "flush"});
  for (unsigned round = 0; round != p.nRounds; ++round) {
    const ComputeSet cs = graph.addComputeSet({dc, "flush_offsets"});
    const unsigned n = p.nActive(round), first = p.firstTask(round);
    for (unsigned slot = 0; slot != n; ++slot) {
      const unsigned task = first + slot;
      addVertex(graph, cs, "sparq::FlushOffsets", p.home(slot),
                {{"filled", cache.filled[task]},
                 {"full", full[task]},
                 {"layer", cache.layer[slot][0]},
                 {"rows", rows[slot]}},
                {{"headDim", d},
                 {"layerRows", cache.layerColumns()},
                 {"nChunks", layout.nChunks()},
                 {"chunk", layout.chunk},
                 {"rowBase", static_cast<unsigned>(layout.columnRow(task, 0, 0))},
                 {"scratchRow", static_cast<unsigned>(layout.scratchColumn(slot))}},
                cycles::flushOffsets(d));
    }
    flush.add(Execute(cs, {dc, "flush_offsets"}));
    writeRemote(cache.keyColumns,
                tail.slice(first, first + n, 0).reshape({std::size_t(n) * d, rowSize}),
                rows.slice(0, n, 0).flatten(), flush, {dc, "write_key_columns"});
  }
  return flush;
}

// Full blocks into the index, and from there full chunks to streaming memory.
Sequence quantiseProgram(Graph &graph, const Cache &cache, const Tensor &blockFull,
                         const DebugContext &dc) {
  const Placement &p = cache.plan.placement;
  const CacheLayout &layout = cache.plan.layout;
  const unsigned nTasks = cache.plan.shape.nTasks();
  const Tensor full =
      addSliced(graph, p, UNSIGNED_INT, nTasks, 1, 1, 1, {dc, "chunk_full"}).reshape({nTasks});
  Sequence program({}, {dc, "quantise"});
  const ComputeSet cs = graph.addComputeSet({dc, "quantise_tail"});
  for (unsigned task = 0; task != nTasks; ++task) {
    const unsigned slot = task % p.slots;
    for (unsigned slice = 0; slice != layout.nTailSlices(); ++slice) {
      const TailSlice own(layout, slice);
      addVertex(graph, cs, "sparq::QuantiseTail", p.tile(slot, slice),
                {{"filled", cache.filled[task]},
                 {"full", blockFull[task]},
                 {"tail", own.of(cache.tail[task]).flatten()},
                 {"tailIndex", own.of(cache.tailIndex[task]).flatten()}},
                {{"nComponents", own.n()},
                 {"indexBits", layout.indexBits},
                 {"columnWords", static_cast<unsigned>(layout.columnElements(layout.chunk))},
                 {"chunk", layout.chunk}},
                cycles::quantiseTail(own.n()));
    }
    addVertex(
        graph, cs, "sparq::ChunkFull", p.home(slot),
        {{"filled", cache.filled[task]}, {"blockFull", blockFull[task]}, {"full", full[task]}},
        {{"chunk", layout.chunk}}, cycles::chunkFull());
  }
  program.add(Execute(cs, {dc, "quantise_tail"}));
  if (layout.tiered) // a chunk is a block
    program.add(storeRecords(graph, cache, full, dc));
  else
    addIfAny(graph, full, flushProgram(graph, cache, full, dc), program, {dc, "flush"});
  return program;
}

} // namespace

void append(Graph &graph, const Cache &cache, const Tensor &key, const Tensor &value,
            const Tensor &active, Sequence &program, const DebugContext &dc) {
  const Shape &shape = cache.plan.shape;
  const Placement &p = cache.plan.placement;
  const CacheLayout &layout = cache.plan.layout;
  const unsigned nTasks = shape.nTasks(), d = shape.headDim;
  checkTensor("append", "key", key, HALF, {shape.batch, shape.nKvHeads, d});
  checkTensor("append", "value", value, HALF, {shape.batch, shape.nKvHeads, d});
  checkTensor("append", "active", active, UNSIGNED_INT, {shape.batch});
  if (cache.plan.resident || layout.positionsPerRow != 1)
    throw Error("append: cache must hold one position a row, got " +
                (cache.plan.resident ? std::string("a cache in SRAM")
                                     : std::to_string(layout.positionsPerRow)));
  const Tensor perTask = activePerTask(graph, cache, active, program, dc);
  const NewRows newRows = makeNewRows(graph, cache, key, value, program, dc);
  const Tensor &keys = newRows.keys, &values = newRows.values;
  addRowWrites(graph, cache, newRows, perTask, program, dc);
  const Tensor full =
      addSliced(graph, p, UNSIGNED_INT, nTasks, 1, 1, 1, {dc, "full"}).reshape({nTasks});
  const ComputeSet store = graph.addComputeSet({dc, "append_tail"}),
                   advance = graph.addComputeSet({dc, "advance"});
  for (unsigned task = 0; task != nTasks; ++task) {
    const unsigned slot = task % p.slots;
    for (unsigned slice = 0; slice != layout.nTailSlices(); ++slice) {
      const TailSlice own(layout, slice);
      addVertex(graph, store, "sparq::AppendTail", p.tile(slot, slice),
                {{"filled", cache.filled[task]},
                 {"active", perTask[task]},
                 {"key", own.of(keys[task])},
                 {"tail", own.of(cache.tail[task]).flatten()}},
                {{"nComponents", own.n()}, {"width", layout.tailWidth()}},
                cycles::appendTail(own.n()));
    }
    for (unsigned slice = 0; slice != p.nSlices && layout.chunk != 0; ++slice) {
      const unsigned first = slice * p.width, end = std::min(first + p.width, d);
      addVertex(graph, store, "sparq::AppendSum", p.tile(slot, slice),
                {{"active", perTask[task]},
                 {"value", values[task].slice(first, end)},
                 {"valueSum", cache.valueSum[task].slice(first, end)}},
                {{"width", end - first}}, cycles::appendSum(end - first));
    }
    addVertex(graph, advance, "sparq::AdvanceLength", p.home(slot),
              {{"filled", cache.filled[task]}, {"active", perTask[task]}, {"full", full[task]}},
              {{"chunk", layout.chunk == 0    ? 1u
                         : layout.quantised() ? block
                                              : layout.chunk}},
              cycles::advanceLength());
  }
  program.add(Execute(store, {dc, "append_tail"}));
  if (layout.tiered)
    insertNewest(graph, cache, keys, values, perTask, program, dc);
  program.add(Execute(advance, {dc, "advance"}));
  if (layout.chunk == 0)
    return;
  if (layout.quantised())
    addIfAny(graph, full, quantiseProgram(graph, cache, full, dc), program, {dc, "block"});
  else
    addIfAny(graph, full, flushProgram(graph, cache, full, dc), program, {dc, "flush"});
}

} // namespace sparq
