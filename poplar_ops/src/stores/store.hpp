// SPDX-License-Identifier: Apache-2.0
//
// A cache consists of lengths and stores. A store keeps one kind of data for all positions, such as
// rows or an index; it knows what memory that needs, how it grows, and how a host writes it. All
// loops over stores go in the order of makeStores: rows first, because other stores follow from
// what rows hold; then the index, then what is made of both.
#pragma once

#include "context.hpp"
#include "planning.hpp"
#include "sparq/host_cache.hpp"
#include <map>
#include <memory>
#include <optional>
#include <poplar/Engine.hpp>

namespace sparq {

// What has to be planned, on tiles like these.
struct Request {
  const Shape &shape;
  const Programs &programs;
  unsigned nTiles;
  std::uint64_t tileBytes;
};

// Bytes on the fullest tile.
struct TileNeed {
  std::uint64_t working; // more rounds need less
  std::uint64_t cache;   // more rounds need no less
};

// Where rows are streamed, more tiles to a slot cost more in exchange than they save in arithmetic.
constexpr unsigned usualParts = 128;

// The kinds that these programs need. Throws Error where they do not share a cache.
std::vector<const StoreKind *> makeStores(const Programs &programs);

// What SRAM holds of the layer that is being worked on, and of all layers if there are several.
struct Layered {
  Tensor state;         // {nTasks, rows, width}
  Tensor stored;        // {nTasks, rows, nLayers * width}
  unsigned rowsPerPart; // of a task, on each part of its slot
};
Layered addLayered(Graph &graph, const Cache &cache, const Type &type, std::size_t nRows,
                   unsigned rowsPerPart, std::size_t width, const char *name);

// A buffer "<cache>/<name>" in streaming memory that uses nRows rows.
RemoteBuffer addBuffer(Graph &graph, const Cache &cache, const char *name, const Type &type,
                       std::size_t width, std::size_t nRows, bool hostWrites);

std::uint64_t bytesOf(const RemoteBuffer &buffer, const Target &target);

// One position of every task, on its way into the stores.
struct Append : Steps {
  Tensor active;       // {nTasks} UNSIGNED_INT, 0 or 1
  Tensor keys, values; // {nTasks, headDim} HALF: as rows hold them, once rows have them
};

// Positions [begin, end) of some tasks of a batch element, no two of them in one slot.
struct FillStep : Steps {
  std::map<std::string, Tensor> &variables; // working tensors by name, which all steps share
  Tensor held;        // {}: positions that the element holds when it is replaced
  ComputeSet offsets; // runs before what stores add to the program
  unsigned length;    // of a full step
  unsigned firstTask, nTasks, begin, end;
  std::vector<Tensor> keys, values; // {end - begin, headDim} of each task: as for Append
  // Of what is kept on chip, where a store has added one: others may use it.
  std::optional<ComputeSet> keep;

  unsigned n() const { return end - begin; }
  unsigned slot(unsigned i) const { return (firstTask + i) % placement().slots; }
  // Adds what numbers rows: first, first + stride, ... of layer 0, on the home of the slot.
  void addOffsets(unsigned slot, const Tensor &rows, std::size_t first, unsigned stride,
                  unsigned layerRows) const;
};

// ---- the host's side of a store

class HostStore;

// Tokens that a layer gets behind those it has.
struct HostTokens {
  const Shape &shape;
  const HostStore &rows; // the store that has them all
  unsigned layer, nTokens;
  const std::vector<std::uint32_t> &held, &counts; // of each batch element; counts at most nTokens
  // {nTasks, nTokens, headDim}: as rows hold them, once rows have them.
  const std::uint16_t *keys, *values;
  std::vector<std::uint16_t> rounded; // what `values` points to, where rows round

  unsigned heldBy(unsigned task) const { return held[task / shape.nKvHeads]; }
  unsigned countOf(unsigned task) const { return counts[task / shape.nKvHeads]; }
  std::size_t at(unsigned task, unsigned token) const {
    return (std::size_t(task) * nTokens + token) * shape.headDim;
  }
};

// Positions [begin, end) of a task, and where they go: {end - begin, headDim}, or nullptr.
struct HostRange {
  unsigned task, begin, end;
  std::uint16_t *key, *value;
};

// Where the host's side of a store is made. Handles begin with the cache's name.
struct HostSite {
  Graph &graph;
  const Cache &cache;
  std::shared_ptr<HostPrograms> programs;

  HostTensor writable(const Tensor &tensor, const char *name) const {
    return HostTensor::writable(graph, tensor, cache.name + name);
  }
  HostTensor readable(const Tensor &tensor, const char *name) const {
    return HostTensor::readable(graph, tensor, cache.name + name);
  }
  RemoteRows rows(const RemoteBuffer &buffer, std::size_t nRows, const char *name) const {
    return {graph, buffer, nRows, cache.name + name, programs};
  }
};

// "The layer" is the one that was selected last (HostCache::selectLayer).
class HostStore {
public:
  virtual ~HostStore() = default;

  // While the layer is loaded: appends tokens; becomes as it was when made.
  virtual void write(Engine &, HostTokens &) {}
  virtual void reset(Engine &) {}
  // Afterwards, when the layer is stored.
  virtual void written(Engine &) {}
  virtual void wasReset(Engine &) {}

  // Of rows alone.
  virtual void read(Engine &, unsigned, const std::vector<HostRange> &) const {}
  // Of hot rows alone: the rows of each task that the last attention call fetched; whether it has
  // any, all of which it forgets.
  virtual std::optional<std::vector<std::uint32_t>> misses(Engine &) const { return {}; }
  virtual bool forgetHot(Engine &) const { return false; }
};

// ---- a store

class Store {
public:
  virtual ~Store() = default;

  // ---- for a plan, before there is a graph
  // What it decides of the layout; stores before it have done so.
  static void layOut(const Request &, CacheLayout &) {}
  // Parts that a slot may have at most.
  static unsigned mostParts(const Request &) { return usualParts; }
  // What it decides when the plan has a placement.
  static void arrange(const Request &, Plan &) {}
  static TileNeed need(const Plan &) { return {0, 0}; }

  // Of the IPU's streaming memory.
  virtual std::uint64_t streamingBytes(const Target &) const { return 0; }
  virtual std::vector<Layered> layered() const { return {}; }

  // ---- one position: rows go first, then vertices of all stores in one compute set, task by task
  virtual void append(Append &) const {}
  virtual void addAppend(const Append &, const ComputeSet &, unsigned) const {}
  // Behind these, before lengths grow.
  virtual void appendNewest(const Append &) const {}
  // Lengths have grown; full {nTasks} is 1 where one became a multiple of unit().
  virtual void appended(const Append &, const Tensor &) const {}
  virtual unsigned unit(const CacheLayout &) const { return 1; }

  // ---- prefill
  // Positions of a step, if it matters.
  virtual unsigned fillStep(const CacheLayout &) const { return 0; }
  virtual void fill(FillStep &) const {}
  // Tasks [firstTask, endTask) have their new lengths.
  virtual void replaced(const Steps &, unsigned, unsigned) const {}
  // All tasks have their new lengths; {batch} is 1 for the elements that were replaced.
  virtual void filled(const Steps &, const Tensor &) const {}

  // Adds what a host needs to the graph, if it has to do with this store.
  virtual std::shared_ptr<HostStore> host(const HostSite &) const { return nullptr; }
};

// What a plan knows of a store that its cache will have.
struct StoreKind {
  void (*layOut)(const Request &, CacheLayout &);
  unsigned (*mostParts)(const Request &);
  void (*arrange)(const Request &, Plan &);
  TileNeed (*need)(const Plan &);
  // Allocates the store of a cache that has a name, a plan and lengths. See createCache.
  std::shared_ptr<const Store> (*make)(Graph &graph, const Cache &cache, bool hostWrites);
};

// That of stores of type S.
template <class S> const StoreKind &kindOf() {
  static const StoreKind kind{S::layOut, S::mostParts, S::arrange, S::need,
                              [](Graph &graph, const Cache &cache, bool hostWrites) {
                                return std::shared_ptr<const Store>(
                                    std::make_shared<S>(graph, cache, hostWrites));
                              }};
  return kind;
}

// The store of type T, which the kernels of the plan have.
template <class T> const T &storeOf(const Cache &cache) {
  for (const auto &store : cache.stores)
    if (const T *const found = dynamic_cast<const T *>(store.get()))
      return *found;
  throw std::logic_error("attention: cache '" + cache.name + "' lacks a store of its kernels");
}

} // namespace sparq
