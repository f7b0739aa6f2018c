// SPDX-License-Identifier: Apache-2.0
//
// Stores of keys and values by position.
#pragma once

#include "attention_steps.hpp"
#include "codelets/cache.cycles.hpp"
#include "store.hpp"

namespace sparq {

// What the entries of a list are, for a task: positions times 1, plus these.
struct ListEntries {
  unsigned rowBase, valueRow, layerRows;
};

// A store that attends to a list of positions.
class ListRows {
public:
  virtual ListEntries entries(const Cache &cache, unsigned task) const = 0;
  // `selected` as selectPositions makes it, of these entries.
  virtual Gathered attend(const Context &context, const Waves &waves, const QueryComponents &q,
                          const Selected &selected) const = 0;

protected:
  ~ListRows() = default;
};

// Rows in streaming memory.
class RemoteRowStore : public Store {
public:
  RemoteRowStore(Graph &graph, const Cache &cache, bool hostWrites)
      : buffer_(addBuffer(graph, cache, "rows", HALF, cache.layout().rowElements,
                          cache.layout().nLayers * cache.layout().layerRows(), hostWrites)) {}
  const RemoteBuffer &buffer() const { return buffer_; }
  std::uint64_t streamingBytes(const Target &target) const override {
    return bytesOf(buffer_, target);
  }

protected:
  // Adds what numbers the rows of an append: {nTasks, 2}, of the key and of the value.
  Tensor addAppendOffsets(const Append &step) const {
    const Cache &cache = step.cache;
    const Placement &p = cache.plan.placement;
    const CacheLayout &layout = cache.layout();
    const Tensor rows =
        addSliced(step.graph, p, UNSIGNED_INT, p.nTasks, 1, 1, 2, {step.dc, "append_rows"})
            .squeeze({1});
    const ComputeSet cs = step.execute("append_offsets");
    for (unsigned task = 0; task != p.nTasks; ++task)
      addVertex(step.graph, cs, "sparq::AppendOffsets", p.home(task % p.slots),
                cycles::appendOffsets(), "filled"_f = cache.filled[task],
                "active"_f = step.active[task], "layer"_f = cache.layer[task % p.slots][0],
                "rows"_f = rows[task], "rowBase"_f = layout.keyRow(task, 0),
                "layerRows"_f = cache.layerRows(), "scratchRow"_f = layout.scratchRow(task),
                "valueRow"_f = layout.valueRow());
    return rows;
  }
  // {slots, length} UNSIGNED_INT: numbers of a prefill step's rows.
  static Tensor fillRows(FillStep &step, const char *name) {
    const Placement &p = step.placement();
    return onceIn(step.variables, name, [&] {
      return addSliced(step.graph, p, UNSIGNED_INT, p.slots, step.length,
                       ceilDiv(step.length, p.parts), 1, {step.dc, "fill_rows"})
          .squeeze({2});
    });
  }
  RemoteRows hostRows(const HostSite &site) const {
    const CacheLayout &layout = site.cache.layout();
    return site.rows(buffer_, layout.nLayers * layout.layerRows(), "/rows");
  }

private:
  RemoteBuffer buffer_;
};

// All keys, then all values; several positions to a row where they are only read in sequence.
class SplitRows final : public RemoteRowStore, public ListRows {
public:
  static void layOut(const Request &request, CacheLayout &layout);
  using RemoteRowStore::RemoteRowStore;

  void append(Append &step) const override;
  void fill(FillStep &step) const override;
  std::shared_ptr<HostStore> host(const HostSite &site) const override;

  ListEntries entries(const Cache &cache, unsigned task) const override;
  Gathered attend(const Context &context, const Waves &waves, const QueryComponents &q,
                  const Selected &selected) const override;
};

// In SRAM, each task's spread evenly over the parts of its slot: keys by pairs of positions, values
// by units of two components of a block (codelets/dense_resident.cpp).
struct ResidentPieces {
  unsigned positions, nKeyParts;         // of keys on a part; parts that have some
  unsigned perBlock, units, nValueParts; // units of a block; on a part; parts that have some
  unsigned nUnits;                       // of all parts
  unsigned firstValuePart; // elsewhere than the keys of the same positions: what stays on a tile is
                           // copied number by number
  explicit ResidentPieces(const Plan &plan);
  std::size_t keyElements(unsigned headDim) const { return std::size_t(positions) * headDim; }
  std::size_t valueElements() const { return std::size_t(units) * blockSize * 2; }
};

class ResidentRows final : public Store {
public:
  static void layOut(const Request &request, CacheLayout &layout);
  static unsigned mostParts(const Request &request) { return request.nTiles; }
  static TileNeed need(const Plan &plan);
  ResidentRows(Graph &graph, const Cache &cache, bool);
  const ResidentPieces pieces;
  // {nTasks, parts that have some, nLayers, elements} HALF, or FLOAT if rows are wide
  const Tensor keys, values;
  // A vertex that reads or writes them.
  static std::string vertex(const char *name, const CacheLayout &layout) {
    return std::string("sparq::") + name + (layout.wideRows ? "<float>" : "<half>");
  }

  void append(Append &step) const override;
  std::shared_ptr<HostStore> host(const HostSite &site) const override;
};

// The key and the value of a position in one row, in fp16 or 8 bits (docs/exactness.md E10), for
// programs that read both or neither.
class JoinedRows final : public RemoteRowStore {
public:
  static void layOut(const Request &request, CacheLayout &layout);
  JoinedRows(Graph &graph, const Cache &cache, bool hostWrites)
      : RemoteRowStore(graph, cache, hostWrites), coded_(cache.plan.shape.rowBits == 8) {}

  void append(Append &step) const override;
  void fill(FillStep &step) const override;
  std::shared_ptr<HostStore> host(const HostSite &site) const override;

  // Adds the vertices that cut n rows into `pieces`, by pairs of lanes and by `width` components of
  // the value; and that turn the keys of a block of rows into columns, of the components that are
  // indexed.
  void addCut(Graph &graph, const ComputeSet &cs, unsigned tile, const Tensor &rows,
              const Tensor &pieces, unsigned n, unsigned headDim, unsigned width) const;
  void addColumns(Graph &graph, const ComputeSet &cs, unsigned tile, const Tensor &rows,
                  const Tensor &columns, const CacheLayout &layout) const;

private:
  // Which tile works on component `component` of the row at a place; components of a value follow
  // those of its key.
  using TileOfRow = std::function<unsigned(unsigned place, unsigned component)>;
  struct Places {
    unsigned n;                                      // of all rows that there may be
    std::vector<std::pair<unsigned, unsigned>> used; // [begin, end) of them
    unsigned width;                                  // components of a piece of work
    TileOfRow tileOf;
  };
  // Rows {n, row} HALF of keys, values {n, headDim}, which become what these rows hold. `variables`
  // as FillStep has them.
  Tensor code(const Steps &steps, const Places &places, std::map<std::string, Tensor> &variables,
              Tensor &keys, Tensor &values) const;

  const bool coded_;
};

// The running sum of all values of a task, from which their mean is made.
class ValueSum final : public Store {
public:
  ValueSum(Graph &graph, const Cache &cache, bool);
  const Tensor &sum() const { return sum_; } // {nTasks, headDim} FLOAT

  std::vector<Layered> layered() const override { return {state_}; }
  void addAppend(const Append &step, const ComputeSet &cs, unsigned task) const override;
  void fill(FillStep &step) const override;
  std::shared_ptr<HostStore> host(const HostSite &site) const override;

private:
  Layered state_;
  Tensor sum_;
};

// Hot rows: those that were selected last, and the newest, in SRAM. Which of them, and where they
// are: HotRows (sparq/plan.hpp).
class HotBuffer final : public Store, public ListRows {
public:
  static void arrange(const Request &request, Plan &plan);
  static TileNeed need(const Plan &plan);
  HotBuffer(Graph &graph, const Cache &cache, bool);

  Tensor keys;   // {nTasks, nSets * 4, nLayers, rows, headDim / 4} HALF, by pairs of lanes
  Tensor values; // {nTasks, slices, nLayers, nPlaces, width} HALF, by components
  Tensor held,
      stamps;    // {nTasks, nOwners, nLayers, nWays} UNSIGNED_INT: what is in which place,
                 // and when it was last selected
  Tensor clock;  // {nTasks, nOwners} UNSIGNED_INT: attention calls so far
  Tensor misses; // {nTasks} UNSIGNED_INT: rows that the last call fetched

  void appendNewest(const Append &step) const override; // it is hot
  // Nothing is hot any more of tasks [firstTask, endTask).
  void replaced(const Steps &steps, unsigned firstTask, unsigned endTask) const override;
  std::shared_ptr<HostStore> host(const HostSite &site) const override;

  // A list of positions themselves.
  ListEntries entries(const Cache &, unsigned) const override { return {0, 0, 0}; }
  Gathered attend(const Context &context, const Waves &waves, const QueryComponents &q,
                  const Selected &selected) const override;
};

// Brings selected positions {slots, topK} into the buffer: their places {slots, topK}.
Tensor makeHot(const Context &context, const HotBuffer &buffer, const Tensor &positions);

// Attention over rows in these places {slots, topK} of the buffer, plus 1; `selected` as
// selectPositions gives it.
Gathered hotAttention(const Context &context, const HotBuffer &buffer, const Waves &waves,
                      const QueryComponents &q, const Selected &selected, const Tensor &slots);

} // namespace sparq
