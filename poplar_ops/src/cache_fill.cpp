// SPDX-License-Identifier: Apache-2.0
#include "sparq/cache_fill.hpp"
#include "context.hpp"
#include "planning.hpp"
#include "remote_copy.hpp"
#include "sparq/tiers.hpp"
#include "tiers.hpp"
#include "vertex_cycles.hpp"
#include <algorithm>
#include <optional>

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

// Positions that move at a time where there are no key columns, and so no chunks.
constexpr unsigned rowsPerStep = 512;

// Working tensors that every step of every batch element uses again.
struct Staging {
  Tensor held;       // {batch} UNSIGNED_INT: what the element holds when it is replaced
  Tensor keyRows;    // {slots, step} UNSIGNED_INT: rows of the keys
  Tensor valueRows;  // {slots, step} UNSIGNED_INT: rows of the values
  Tensor columnRows; // {slots, headDim} UNSIGNED_INT: rows of key_columns
  Tensor columns;    // {slots, nTailParts, headDim * tailLength} HALF, where the tail is scored
  Tensor index; // the same as records: {slots, nTailParts, headDim * words} UNSIGNED_INT, where the
                // index has few bits
};

// Consecutive tasks of one batch element, no two in one slot.
struct Group {
  unsigned firstTask, nTasks;
};

// Positions [begin, end) of a batch element.
struct Step {
  unsigned begin, end;
};

class Fill {
public:
  Fill(Graph &graph, const Cache &cache, const Tensor &key, const Tensor &value,
       const Tensor &lengths, const DebugContext &dc)
      : graph(graph), cache(cache), shape(cache.plan.shape), p(cache.plan.placement),
        layout(cache.plan.layout), key(key), value(value), lengths(lengths), dc(dc) {
    const std::size_t d = shape.headDim;
    staging.held = graph.addVariable(UNSIGNED_INT, {shape.batch}, {dc, "held"});
    replace = graph.addVariable(UNSIGNED_INT, {shape.batch}, {dc, "replace"});
    for (Tensor *rows : {&staging.keyRows, &staging.valueRows})
      *rows = addSliced(graph, p, UNSIGNED_INT, p.slots, stepLength(),
                        (stepLength() + p.parts - 1) / p.parts, 1, {dc, "fill_rows"})
                  .squeeze({2});
    if (layout.rowBits == 8)
      rounder.emplace(
          graph, layout, p.slots * stepLength(), static_cast<unsigned>(d),
          [&](unsigned row, unsigned) {
            const unsigned perPart = (stepLength() + p.parts - 1) / p.parts;
            return p.tile(row / stepLength(), row % stepLength() / perPart);
          },
          dc);
    if (!fillsColumns())
      return;
    staging.columnRows =
        addSliced(graph, p, UNSIGNED_INT, p.slots, 1, 1, d, {dc, "fill_column_rows"}).squeeze({1});
    staging.columns = graph.addVariable(HALF, {p.slots, layout.nTailParts(), d * layout.tailLength},
                                        {dc, "fill_columns"});
    if (layout.quantised())
      staging.index = graph.addVariable(
          UNSIGNED_INT, {p.slots, layout.nTailParts(), d * pieceSize()}, {dc, "fill_index"});
    for (unsigned s = 0; s != p.slots; ++s)
      for (unsigned i = 0; i != layout.nTailParts(); ++i) {
        const unsigned tile = p.tile(s, layout.tailFirst + i);
        graph.setTileMapping(staging.columns[s][i], tile);
        if (layout.quantised())
          graph.setTileMapping(staging.index[s][i], tile);
      }
  }

  void add(Sequence &program) {
    const ComputeSet cs = graph.addComputeSet({dc, "fill_lengths"});
    for (unsigned b = 0; b != shape.batch; ++b) {
      const unsigned home = p.home(b * shape.nKvHeads % p.slots);
      graph.setTileMapping(staging.held[b], home);
      graph.setTileMapping(replace[b], home);
      addVertex(graph, cs, "sparq::FillLength", home,
                {{"length", lengths[b]}, {"held", staging.held[b]}, {"replace", replace[b]}},
                {{"nTokens", nTokens()}}, cycles::fillLength());
    }
    program.add(Execute(cs, {dc, "fill_lengths"}));
    for (unsigned b = 0; b != shape.batch; ++b)
      program.add(If(replace[b], element(b), Sequence(), {dc, "fill"}));
    if (layout.tiered) {
      Sequence index({}, {dc, "index"});
      indexRows(graph, cache, index, dc);
      addIfAny(graph, replace, index, program, {dc, "index"});
    }
  }

private:
  unsigned nTokens() const { return static_cast<unsigned>(key.dim(2)); }
  // Key columns in streaming memory, chunk by chunk; else there are rows alone.
  bool fillsColumns() const { return layout.chunk != 0 && !layout.tiered; }
  unsigned stepLength() const { return fillsColumns() ? layout.chunk : rowsPerStep; }
  unsigned slot(unsigned task) const { return task % p.slots; }
  // Elements of a component's key columns in a piece of the tail.
  unsigned pieceSize() const {
    return static_cast<unsigned>(layout.columnElements(layout.tailLength));
  }
  // A task's pieces {nTailParts, headDim * size} as {headDim, row}: the chunk's.
  Tensor byComponent(const Tensor &pieces, unsigned task, std::size_t size) const {
    const std::size_t d = shape.headDim, nPieces = layout.nTailParts();
    return pieces[slot(task)]
        .reshape({nPieces, d, size})
        .dimShuffle({1, 0, 2})
        .reshape({d, nPieces * size})
        .slice(0, size * layout.chunk / layout.tailLength, 1);
  }
  // {nTokens, headDim} of a task.
  Tensor ofTask(const Tensor &tensor, unsigned task) const {
    return tensor[task / shape.nKvHeads][task % shape.nKvHeads];
  }

  Sequence element(unsigned b) const {
    Sequence program({}, {dc, "fill"});
    const unsigned first = b * shape.nKvHeads, end = first + shape.nKvHeads;
    for (unsigned begin = 0; begin < nTokens(); begin += stepLength()) {
      const Step step{begin, std::min(begin + stepLength(), nTokens())};
      for (unsigned task = first; task < end; task += p.slots) {
        const Group group{task, std::min(p.slots, end - task)};
        const std::vector<Tensor> values = addRows(program, group, step);
        if (fillsColumns())
          addColumns(program, group, step);
        else if (layout.tiered)
          addSums(program, group, step, values);
      }
    }
    program.add(Copy(staging.held[b].expand({0}).broadcast(shape.nKvHeads, 0),
                     cache.filled.slice(first, end), false, {dc, "set_filled"}));
    if (layout.tiered)
      forgetHot(graph, cache, first, end, program, dc);
    return program;
  }

  // Every row goes to its place, those beyond the length too: nobody reads a row there before
  // append has written it. The values {step, headDim} of each task, as they are held.
  std::vector<Tensor> addRows(Sequence &program, const Group &group, const Step &step) const {
    const unsigned n = step.end - step.begin, d = shape.headDim;
    const ComputeSet cs = graph.addComputeSet({dc, "fill_offsets"});
    std::vector<Tensor> keyRows, valueRows, keys, values;
    for (unsigned task = group.firstTask; task != group.firstTask + group.nTasks; ++task) {
      keyRows.push_back(staging.keyRows[slot(task)].slice(0, n));
      valueRows.push_back(staging.valueRows[slot(task)].slice(0, n));
      keys.push_back(ofTask(key, task).slice(step.begin, step.end));
      values.push_back(ofTask(value, task).slice(step.begin, step.end));
      const std::size_t firstRow = layout.keyRow(task, step.begin);
      const Tensor layer = cache.layer[slot(task)][0];
      addVertex(graph, cs, "sparq::FillOffsets", p.home(slot(task)),
                {{"layer", layer}, {"rows", keyRows.back()}},
                {{"n", n},
                 {"first", static_cast<unsigned>(firstRow)},
                 {"step", 1u},
                 {"layerRows", cache.layerRows()}},
                cycles::fillOffsets(n));
      if (!layout.tiered)
        addVertex(graph, cs, "sparq::FillOffsets", p.home(slot(task)),
                  {{"layer", layer}, {"rows", valueRows.back()}},
                  {{"n", n},
                   {"first", static_cast<unsigned>(firstRow + layout.valueRow())},
                   {"step", 1u},
                   {"layerRows", cache.layerRows()}},
                  cycles::fillOffsets(n));
      if (fillsColumns()) {
        const unsigned chunk = step.begin / layout.chunk;
        addVertex(graph, cs, "sparq::FillOffsets", p.home(slot(task)),
                  {{"layer", layer}, {"rows", staging.columnRows[slot(task)]}},
                  {{"n", d},
                   {"first", static_cast<unsigned>(layout.columnRow(task, 0, chunk))},
                   {"step", layout.nChunks()},
                   {"layerRows", cache.layerColumns()}},
                  cycles::fillOffsets(d));
      }
    }
    program.add(Execute(cs, {dc, "fill_offsets"}));
    Tensor rows;
    if (rounder) {
      std::vector<RowRounder::Range> places;
      for (unsigned task = group.firstTask; task != group.firstTask + group.nTasks; ++task)
        places.push_back({slot(task) * stepLength(), slot(task) * stepLength() + n});
      const RoundedRows rounded = rounder->round(places, concat(keys), concat(values), program, dc);
      for (unsigned i = 0; i != group.nTasks; ++i)
        values[i] = rounded.values.slice(i * n, (i + 1) * n);
      rows = rounded.rows;
    } else if (layout.tiered) {
      rows = concat(concat(keys), concat(values), 1);
    }
    if (layout.tiered)
      writeRemote(cache.rows, rows, concat(keyRows), program, {dc, "fill_rows"});
    else
      writeRemote(cache.rows, concat(concat(keys), concat(values), 0),
                  concat(concat(keyRows), concat(valueRows), 0), program, {dc, "fill_rows"});
    return values;
  }

  // The running sum of a task's values {step, headDim}.
  void addSum(const ComputeSet &cs, unsigned task, const Step &step, const Tensor &values) const {
    const unsigned n = step.end - step.begin, d = shape.headDim;
    for (unsigned slice = 0; slice != p.nSlices; ++slice) {
      const unsigned first = slice * p.width, end = std::min(first + p.width, d);
      addVertex(graph, cs, "sparq::FillSum", p.tile(slot(task), slice),
                {{"held", staging.held[task / shape.nKvHeads]},
                 {"values", values.slice(first, end, 1).flatten()},
                 {"valueSum", cache.valueSum[task].slice(first, end)}},
                {{"first", step.begin}, {"n", n}, {"width", end - first}},
                cycles::fillSum(n, end - first));
    }
  }
  void addSums(Sequence &program, const Group &group, const Step &step,
               const std::vector<Tensor> &values) const {
    const ComputeSet cs = graph.addComputeSet({dc, "fill_sums"});
    for (unsigned i = 0; i != group.nTasks; ++i)
      addSum(cs, group.firstTask + i, step, values[i]);
    program.add(Execute(cs, {dc, "fill_sums"}));
  }

  // The chunk's key columns: transposed piece by piece, kept as the tail where the element ends
  // here, and written where the chunk is full. A chunk beyond the length is written too; it is never read.
  void addColumns(Sequence &program, const Group &group, const Step &step) const {
    const unsigned n = step.end - step.begin, d = shape.headDim, index = step.begin / layout.chunk;
    const ComputeSet transpose = graph.addComputeSet({dc, "fill_columns"}),
                     quantise = graph.addComputeSet({dc, "fill_index"}),
                     keep = graph.addComputeSet({dc, "fill_tail"});
    std::vector<Tensor> columns, rows;
    for (unsigned task = group.firstTask; task != group.firstTask + group.nTasks; ++task) {
      const Tensor keys = ofTask(key, task).slice(step.begin, step.end);
      for (unsigned piece = 0, at = 0; at < n; ++piece, at += layout.tailLength) {
        const unsigned own = std::min(layout.tailLength, n - at);
        const unsigned tile = p.tile(slot(task), layout.tailFirst + piece);
        const Tensor mine = staging.columns[slot(task)][piece];
        addVertex(graph, transpose, "sparq::FillColumns", tile,
                  {{"keys", keys.slice(at, at + own).flatten()}, {"columns", mine}},
                  {{"n", own}, {"headDim", d}, {"tailLength", layout.tailLength}},
                  cycles::fillColumns(d, own));
        if (layout.quantised())
          addVertex(graph, quantise, "sparq::FillIndex", tile,
                    {{"columns", mine}, {"index", staging.index[slot(task)][piece]}},
                    {{"n", own},
                     {"headDim", d},
                     {"indexBits", layout.indexBits},
                     {"columnWords", pieceSize()},
                     {"tailLength", layout.tailLength}},
                    cycles::fillIndex(d, own / block));
      }
      addTail(keep, task, index, n);
      addSum(keep, task, step, ofTask(value, task).slice(step.begin, step.end));
      columns.push_back(layout.quantised() ? byComponent(staging.index, task, pieceSize())
                                           : byComponent(staging.columns, task, layout.tailLength));
      rows.push_back(staging.columnRows[slot(task)]);
    }
    program.add(Execute(transpose, {dc, "fill_columns"}));
    if (layout.quantised())
      program.add(Execute(quantise, {dc, "fill_index"}));
    program.add(Execute(keep, {dc, "fill_tail"}));
    if (n == layout.chunk)
      writeRemote(cache.keyColumns, concat(columns), concat(rows), program,
                  {dc, "fill_key_columns"});
  }

  // Keeps the chunk as the tail where the element ends here, n positions of it at most.
  void addTail(const ComputeSet &keep, unsigned task, unsigned index, unsigned n) const {
    const Tensor columns = byComponent(staging.columns, task, layout.tailLength);
    const Tensor held = staging.held[task / shape.nKvHeads];
    for (unsigned slice = 0; slice != layout.nTailSlices(); ++slice) {
      const TailSlice own(layout, slice);
      const unsigned tile = p.tile(slot(task), slice);
      const Tensor from = own.of(columns).flatten(), to = own.of(cache.tail[task]).flatten();
      if (!layout.quantised()) {
        addVertex(graph, keep, "sparq::FillTail", tile,
                  {{"held", held}, {"columns", from}, {"tail", to}},
                  {{"index", index}, {"chunk", layout.chunk}, {"nComponents", own.n()}},
                  cycles::fillTail(own.n(), n));
        continue;
      }
      const unsigned rowSize = static_cast<unsigned>(layout.columnElements(layout.chunk));
      const Tensor records = byComponent(staging.index, task, pieceSize());
      addVertex(graph, keep, "sparq::FillTailIndex", tile,
                {{"held", held},
                 {"columns", from},
                 {"columnIndex", own.of(records).flatten()},
                 {"tail", to},
                 {"tailIndex", own.of(cache.tailIndex[task]).flatten()}},
                {{"index", index},
                 {"chunk", layout.chunk},
                 {"nComponents", own.n()},
                 {"indexBits", layout.indexBits},
                 {"columnWords", rowSize}},
                cycles::fillTailIndex(own.n(), rowSize));
    }
  }

  Graph &graph;
  const Cache &cache;
  const Shape &shape;
  const Placement &p;
  const CacheLayout &layout;
  const Tensor key, value, lengths;
  const DebugContext &dc;
  Staging staging;
  std::optional<RowRounder> rounder; // where rows have 8 bits
  Tensor replace;                    // {batch} UNSIGNED_INT, 0 or 1
};

} // namespace

namespace {

void fillWithZeros(Graph &graph, const Tensor &tensor) {
  if (!tensor.valid())
    return;
  const std::size_t n = tensor.numElements();
  if (tensor.elementType() != HALF && tensor.elementType() != FLOAT)
    graph.setInitialValue(tensor, ArrayRef<unsigned>(std::vector<unsigned>(n, 0)));
  else if (tensor.elementType() != HALF)
    graph.setInitialValue(tensor, ArrayRef<float>(std::vector<float>(n, 0.0f)));
  else
    graph.setInitialValueHalf(tensor, 0);
}

} // namespace

void initialiseCache(Graph &graph, const Cache &cache) {
  if (cache.layout().nLayers != 1)
    for (const Tensor &t :
         {cache.stored.filled, cache.stored.valueSum, cache.stored.tail, cache.stored.tailIndex})
      fillWithZeros(graph, t);
  else
    for (const Tensor &t : {cache.filled, cache.valueSum, cache.tail, cache.tailIndex})
      fillWithZeros(graph, t);
}

void fillCache(Graph &graph, const Cache &cache, const Tensor &key, const Tensor &value,
               const Tensor &lengths, Sequence &program, const DebugContext &dc) {
  const Shape &shape = cache.plan.shape;
  const std::size_t n = key.rank() == 4 ? key.dim(2) : 0;
  const std::vector<std::size_t> expected{shape.batch, shape.nKvHeads, n, shape.headDim};
  checkTensor("fill", "key", key, HALF, expected);
  checkTensor("fill", "value", value, HALF, expected);
  checkTensor("fill", "lengths", lengths, INT, {shape.batch});
  if (n == 0 || n > shape.capacity)
    throw Error("fill: n_tokens must be in [1, capacity=" + std::to_string(shape.capacity) +
                "], got " + std::to_string(n));
  if (cache.plan.resident || cache.plan.layout.positionsPerRow != 1)
    throw Error("fill: cache must hold one position a row, got " +
                (cache.plan.resident ? std::string("a cache in SRAM")
                                     : std::to_string(cache.plan.layout.positionsPerRow)));
  Fill(graph, cache, key, value, lengths, dc).add(program);
}

Tensor activeTokens(Graph &graph, const Cache &cache, const Tensor &requested, Sequence &program,
                    const DebugContext &dc) {
  const Shape &shape = cache.plan.shape;
  const Placement &p = cache.plan.placement;
  checkTensor("append", "active", requested, INT, {shape.batch});
  const Tensor active = graph.addVariable(UNSIGNED_INT, {shape.batch}, {dc, "active"});
  const ComputeSet cs = graph.addComputeSet({dc, "active"});
  for (unsigned b = 0; b != shape.batch; ++b) {
    const unsigned task = b * shape.nKvHeads, home = p.home(task % p.slots);
    graph.setTileMapping(active[b], home);
    addVertex(graph, cs, "sparq::ActiveToken", home,
              {{"requested", requested[b]}, {"filled", cache.filled[task]}, {"active", active[b]}},
              {{"capacity", shape.capacity}}, cycles::activeToken());
  }
  program.add(Execute(cs, {dc, "active"}));
  return active;
}

Tensor heldPositions(Graph &graph, const Cache &cache, Sequence &program, const DebugContext &dc) {
  const Shape &shape = cache.plan.shape;
  const Tensor held = graph.addVariable(INT, {shape.batch}, {dc, "held"});
  for (unsigned b = 0; b != shape.batch; ++b)
    graph.setTileMapping(
        held[b], cache.plan.placement.home(b * shape.nKvHeads % cache.plan.placement.slots));
  program.add(Copy(
      cache.filled.reshape({shape.batch, shape.nKvHeads}).slice(0, 1, 1).flatten().reinterpret(INT),
      held, false, {dc, "held"}));
  return held;
}

} // namespace sparq
