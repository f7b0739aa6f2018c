// SPDX-License-Identifier: Apache-2.0
//
// A compiled graph with a cache and attention programs, loaded on a device: what the Python package
// and the benchmarks drive.
#pragma once

#include "sparq/device_options.hpp"
#include "sparq/host_cache.hpp"
#include "sparq/host_history.hpp"
#include "sparq/kernels.hpp"
#include <cstdint>
#include <memory>
#include <poplar/Device.hpp>
#include <poplar/Engine.hpp>
#include <string>
#include <vector>

namespace sparq {

// Attaches to IPUs, or opens emulated ones. Throws Error where there is none (or, on the
// emulator's side, where this build's Poplar can not emulate streaming memory: only the bundled
// emulator can).
poplar::Device openDevice(const DeviceOptions &options);

// Why openDevice would fail; empty if it would not.
std::string deviceUnavailable(const std::string &device);

class Session {
public:
  // Builds, compiles and loads. repeats > 0 adds, for timing, programs that run each attention
  // `repeats` times in one launch. Throws DoesNotFit where the tiles can not hold it.
  Session(const Shape &shape, const Programs &programs, const DeviceOptions &device,
          unsigned repeats = 0);

  const Plan &plan() const { return plan_; }
  unsigned nLayers() const { return plan_.layout.nLayers; }
  // Every call below works on one layer, and throws Error where there is no such layer.
  const std::vector<std::uint32_t> &lengths(unsigned layer = 0) const;
  // What the cache takes of the IPU's streaming memory, and whether that makes the engine run with
  // `target.extendedMemory`.
  std::uint64_t streamingBytes() const { return streamingBytes_; }
  bool extendedMemory() const;
  poplar::Engine &engine() { return *engine_; }

  // The host's side of the cache: see HostCache.
  void write(const std::uint16_t *key, const std::uint16_t *value, unsigned nTokens,
             const std::vector<std::uint32_t> &counts, unsigned layer = 0);
  void read(std::uint16_t *key, std::uint16_t *value, unsigned nTokens, unsigned layer = 0);
  void reset(unsigned layer = 0);
  // For planning: the cache counts as holding so many positions; nothing is written. Throws Error
  // unless there is one length in [1, capacity] for each batch element.
  void assumeLengths(const std::vector<std::uint32_t> &lengths, unsigned layer = 0);

  // Arrays are C-contiguous fp16 bit patterns. Where a call throws Error the cache is as it was.
  //
  // Appends one token to the elements whose active is 1, by the device: key, value {batch,
  // nKvHeads, headDim}.
  void append(const std::uint16_t *key, const std::uint16_t *value,
              const std::vector<std::uint32_t> &active, unsigned layer = 0);
  // Prefill by the device, fillTokens a call: key, value {batch, nKvHeads, fillTokens, headDim}.
  // Where lengths[b] is not -1, element b then holds the first lengths[b] and nothing else.
  void fill(const std::uint16_t *key, const std::uint16_t *value,
            const std::vector<std::int32_t> &lengths, unsigned layer = 0);

  // Runs entry `index` of the attention programs: query, output {batch, nHeads, headDim}.
  // `repeated` runs the timing program.
  void attention(std::size_t index, const std::uint16_t *query, std::uint16_t *output,
                 bool repeated = false, unsigned layer = 0);

  // What window attention remembers of a layer, of each batch element; n_recent() steps at most, 0 where no
  // program remembers any. setHistory throws Error where there are more, or of more positions than capacity.
  unsigned nRecent() const { return plan_.history.nRecent; }
  std::vector<HostHistory::Steps> history(unsigned layer = 0);
  void setHistory(const std::vector<HostHistory::Steps> &steps, unsigned layer = 0);

  // Of a cache in three tiers: how many rows of each task the last attention call had to fetch. Throws
  // Error where there are no tiers.
  std::vector<std::uint32_t> misses();

private:
  void checkLayer(const char *op, unsigned layer) const;
  // A variable {shape}, whose first dimensions are the tasks, each on the home tile of its slot.
  poplar::Tensor addOnHomes(poplar::Graph &graph, const std::vector<std::size_t> &shape,
                            const std::string &name) const;
  poplar::program::Sequence buildAppend(poplar::Graph &graph, const Cache &cache);
  poplar::program::Sequence buildFill(poplar::Graph &graph, const Cache &cache);
  std::vector<poplar::program::Program> buildPrograms(poplar::Graph &graph, const Cache &cache,
                                                      const Programs &programs);
  void compile(poplar::Graph &graph, const std::vector<poplar::program::Program> &all);
  std::size_t nAttention() const { return plan_.attention.size(); }

  poplar::Device device_;
  Plan plan_;
  std::unique_ptr<HostCache> cache_;
  HostHistory history_;
  std::unique_ptr<poplar::Engine> engine_;
  HostTensor query_;
  std::vector<HostTensor> outputs_; // of each attention program
  // What append and fill take: keys, values, and which elements are active or how long they are.
  struct NewTokens {
    HostTensor key, value, counts;
  } append_, fill_;
  unsigned repeats_ = 0, fillTokens_ = 0;
  std::uint64_t streamingBytes_ = 0;
};

} // namespace sparq
