// SPDX-License-Identifier: Apache-2.0
//
// A compiled graph with caches and attention programs, loaded on one IPU or several. The Python
// package and the benchmarks drive it.
//
// Several IPUs share one graph, engine and executable. Each has a cache, remote buffers and
// programs of its own, on a virtual graph of its tiles. Every task is computed by one IPU, so
// results are bit for bit those of one IPU. Where heads are split the tensors of the host are on
// IPU 0: a token goes from there to all IPUs, and their outputs come back.
#pragma once

#include "sparq/host_cache.hpp"
#include "sparq/kernels.hpp"
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <poplar/Device.hpp>
#include <poplar/Engine.hpp>
#include <poplar/Program.hpp>
#include <string>
#include <vector>

namespace sparq {

// What of a model an IPU of several has.
//
//   layers   layer l of L is on IPU l * N / L. What passes from IPU to IPU is what a layer hands to
//            the next.
//   heads    every IPU has all layers, of its share of the KV heads, then of the batch.
enum class Split { layers, heads };

// What a caller chooses of the caches of a model on a device: sparq_ipu.device_options in Python,
// which checks it. No result depends on it.
struct DeviceOptions {
  std::string device = "emulator"; // or "ipu"
  unsigned nTiles = 0;             // of an emulated IPU; 0: all of a real one
  unsigned nIpus = 1;
  Split split = Split::layers;
  TierOptions tiers{}; // for a cache in three tiers; the kernels determine its memory
};

// One IPU's part: layers [firstLayer, firstLayer + nLayers), each with this cache.
struct Share {
  Shape shape;
  unsigned firstLayer = 0, nLayers = 1;
  unsigned firstBatch = 0, firstKvHead = 0; // where heads are split

  // Of what there is for each batch element, these.
  template <class T> std::vector<T> ofBatch(const std::vector<T> &all) const {
    return {all.begin() + firstBatch, all.begin() + firstBatch + shape.batch};
  }
  // Number of its first KV head in batch element b of its own, among all.
  std::size_t firstRow(const Shape &whole, unsigned b) const {
    return (firstBatch + b) * std::size_t(whole.nKvHeads) + firstKvHead;
  }
};

// nIpus: a power of two. There are at least as many layers; or KV heads, then the batch, split
// evenly.
std::vector<Share> shareOut(const Shape &shape, unsigned nLayers, unsigned nIpus, Split split);

// The part of an array {batch, nKvHeads, each} that a share has, `whole` being the shape of all;
// and back.
template <class T>
std::vector<T> partOf(const Shape &whole, const Share &share, const T *array, std::size_t each) {
  std::vector<T> part;
  part.reserve(share.shape.nTasks() * each);
  for (unsigned b = 0; b != share.shape.batch; ++b) {
    const T *const from = array + share.firstRow(whole, b) * each;
    part.insert(part.end(), from, from + share.shape.nKvHeads * each);
  }
  return part;
}

template <class T>
void putPart(const Shape &whole, const Share &share, const std::vector<T> &part, T *array,
             std::size_t each) {
  const std::size_t n = share.shape.nKvHeads * each;
  for (unsigned b = 0; b != share.shape.batch; ++b)
    std::copy_n(part.begin() + static_cast<std::ptrdiff_t>(b * n), n,
                array + share.firstRow(whole, b) * each);
}

// A tensor that programs take or give, and how the host writes or reads it.
struct Port {
  Tensor tensor;
  HostTensor host;
};

// What programs take and give, of a cache of one shape.
struct Ports {
  Port query;              // {batch, nHeads, headDim}
  Port key, value, active; // of append: {batch, nKvHeads, headDim}, {batch}; valid where it is one
  std::vector<Port> outputs; // of each attention, as the query
};

// Where ports are: what belongs to a task on the home tile of its slot. Names begin with `prefix`.
struct PortSite {
  Graph &graph;
  const Placement &placement;
  Shape shape;
  std::string prefix;

  void addQuery(Ports &ports) const;
  void addAppend(Ports &ports) const;
  void addOutput(Ports &ports, const std::string &step, Tensor output = {}) const;

private:
  Tensor add(unsigned heads, const std::string &name) const;
  Port writable(const Tensor &tensor, const std::string &name) const;
};

// A session on one IPU: a cache, the programs over it, and the tensors that pass data between the
// host and the programs.
struct Shard {
  // The cache, in step with those that `lockstep` has.
  Shard(const Share &share, Graph graph, const Programs &programs, const std::string &prefix,
        bool shared, const std::shared_ptr<Lockstep> &lockstep);
  // Its programs, in lockstep too: those that the last IPU returns are of all IPUs, those of the
  // others are empty. `shared`: several programs call each of them, so they become functions.
  void addPrograms(const Programs &programs, bool shared,
                   const std::shared_ptr<Lockstep> &lockstep);

  Share share;
  Graph graph; // of its tiles
  Plan plan;
  std::string prefix; // of names
  Cache cache;
  std::optional<HostCache> host;  // of this IPU alone
  std::vector<std::string> steps; // of each attention, in a profile
  Ports ports;
  // Each works on the layer that was selected.
  Program append;
  std::vector<Program> attend;

  unsigned own(unsigned layer) const { return layer - share.firstLayer; }
  // What the cache takes of the IPU's streaming memory.
  std::uint64_t streamingBytes() const;

private:
  Tensor attendNothing(Sequence &program, const std::string &step);
};

// Attaches to IPUs, or opens emulated ones. Throws Error where there are too few, or where the
// Poplar of this build can not emulate streaming memory, as only the bundled emulator can.
Device openDevice(const DeviceOptions &options);

// Why openDevice would fail; empty if it would not.
std::string deviceUnavailable(const std::string &device);

class Session {
public:
  // Builds, compiles and loads. `programs.nLayers` counts the layers of all IPUs; the options
  // replace `programs.tiers`. `timed`: the device counts the cycles of each attention call.
  // `stacked`: each attention also has the program that attendAll runs. Throws DoesNotFit where the
  // tiles have no room.
  Session(const Shape &shape, const Programs &programs, const DeviceOptions &options,
          bool timed = false, bool stacked = false);
  Session(const Session &) = delete;
  Session &operator=(const Session &) = delete;

  const Plan &plan(unsigned ipu = 0) const { return shards_[ipu].plan; }
  // Entry `index` of the attention programs. Throws Error where there is none, as all calls do.
  const PlannedAttention &program(std::int64_t index) const;
  unsigned nLayers() const { return nLayers_; }
  unsigned nIpus() const { return static_cast<unsigned>(shards_.size()); }
  // Every call below works on one layer, and throws Error where there is no such layer.
  std::vector<std::uint32_t> lengths(unsigned layer = 0) const;
  // Bytes of an IPU's streaming memory that the cache takes, and whether they make the engine run
  // with `target.extendedMemory`.
  std::uint64_t streamingBytes(unsigned ipu = 0) const { return shards_[ipu].streamingBytes(); }
  bool extendedMemory() const;
  Engine &engine() { return *engine_; }

  // The host's side of the cache: see HostCache.
  void write(const std::uint16_t *key, const std::uint16_t *value, unsigned nTokens,
             const std::vector<std::uint32_t> &counts, unsigned layer = 0);
  void read(std::uint16_t *key, std::uint16_t *value, unsigned nTokens, unsigned layer = 0);
  void reset(unsigned layer = 0);
  // For planning: sets lengths, one in [1, capacity] for each batch element, and writes nothing.
  void assumeLengths(const std::vector<std::uint32_t> &lengths, unsigned layer = 0);

  // Arrays are C-contiguous fp16 bit patterns. Where a call throws Error the cache is as it was.
  //
  // Appends one token to the elements whose active is 1, by the device: key, value {batch,
  // nKvHeads, headDim}.
  void append(const std::uint16_t *key, const std::uint16_t *value,
              const std::vector<std::uint32_t> &active, unsigned layer = 0);

  // Runs entry `index` of the attention programs: query, output {batch, nHeads, headDim}.
  void attention(std::size_t index, const std::uint16_t *query, std::uint16_t *output,
                 unsigned layer = 0);
  // All layers in one launch, each with the output of the one before as its query: the attention of
  // one token, without the rest of the model.
  void attendAll(std::size_t index, const std::uint16_t *query, std::uint16_t *output);

  // The history of window attention of a layer, for each batch element: at most nRecent() steps,
  // which is 0 where no program remembers any. setHistory throws Error where there are more steps,
  // or positions beyond the capacity.
  unsigned nRecent() const { return plan().history.nRecent; }
  bool wideRows() const { return plan().layout.wideRows; }
  std::vector<HostHistory::Steps> history(unsigned layer = 0);
  void setHistory(const std::vector<HostHistory::Steps> &steps, unsigned layer = 0);

  // Tile cycles of the last attention call (not of attendAll), counted by tile 0 of its first IPU,
  // and cycles in a second. Throws Error where the session is not timed.
  std::uint64_t cycles();
  double clock() const;

  // For a cache in three tiers: rows of each task that the last attention call fetched; and a call
  // after which no row of any layer is hot. Both throw Error for another cache.
  std::vector<std::uint32_t> misses();
  void forgetHot();

private:
  // What the host calls: programs that work together on a layer of some shards, all or one.
  struct Entry {
    const Ports *ports;
    std::vector<Shard *> shards;
    unsigned firstProgram = 0;      // append, each attention
    std::vector<HostTensor> cycles; // of each attention, where they are counted
    std::vector<Program> attend;    // each attention, from port to port

    // Whether the ports are those of no shard: copies go between.
    bool isSpread() const { return ports != &shards.front()->ports; }
  };
  std::size_t nAttention() const { return plan().attention.size(); }
  void addEntries(bool spread);
  void addWhole(Shard &shard);
  std::vector<Program> buildPrograms(bool stacked);
  std::vector<Program> programsOf(Entry &entry) const;
  Program timed(Entry &entry, std::size_t index) const;
  // Between the ports of an entry and those of its shards: one copy for all IPUs.
  Tensor ofShard(const Shard &shard, const Tensor &whole) const;
  Program scatter(const Entry &entry, Port Ports::*port, const char *name) const;
  Program appendOn(const Entry &entry) const;
  Program attend(const Entry &entry, std::size_t index) const;
  Sequence stack(std::size_t index);
  void compile(Graph &graph, const std::vector<Program> &all);

  void checkBatch(const char *op, std::size_t n) const;
  Error noTiers(const char *op) const;
  // The entry that has a layer. Throws Error where there is no such layer.
  const Entry &entryOf(const char *op, unsigned layer) const;
  void select(const Entry &entry, unsigned layer);
  void tookStep(const Entry &entry, std::size_t index, unsigned layer);

  Shape shape_;
  unsigned nLayers_;
  bool timed_;
  Device device_;
  std::vector<Shard> shards_;
  Ports whole_; // where heads are split, on IPU 0
  std::vector<Entry> entries_;
  const Entry *last_ = nullptr; // that attended
  std::size_t lastIndex_ = 0;   // and which attention
  unsigned firstStack_ = 0;     // program; 0: there are none
  std::unique_ptr<Engine> engine_;
};

} // namespace sparq
