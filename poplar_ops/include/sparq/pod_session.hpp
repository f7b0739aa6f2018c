// SPDX-License-Identifier: Apache-2.0
//
// Sessions over several IPUs: one graph, one engine, one executable, a cache on each IPU (its own
// remote buffers, its own programs, on a virtual graph of its tiles). Bit for bit as on one IPU,
// since every task is computed by one IPU as there.
// Where heads are split the host's tensors are on IPU 0: a token's query, key and value go to all IPUs, and
// their outputs come back.
#pragma once

#include "sparq/host_cache.hpp"
#include "sparq/kernels.hpp"
#include "sparq/session.hpp"
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace sparq {

// One IPU's part of a pod.
struct Share {
  Shape shape;
  unsigned firstLayer = 0, nLayers = 1;
  unsigned firstBatch = 0, firstKvHead = 0; // Split::heads
};

// Which IPU has what. Throws Error unless nIpus is a power of two up to maxIpus, and layers are at
// least as many, or KV heads, then the batch, split evenly.
std::vector<Share> shareOut(const Shape &shape, unsigned nLayers, unsigned nIpus, Split split);

class PodSession {
public:
  // Builds, compiles and loads; as Session. `programs.nLayers` counts all layers. `stacked` adds,
  // for each attention, the program that attendAll runs. There is no program for prefill.
  PodSession(const Shape &shape, const Programs &programs, const DeviceOptions &options,
             bool stacked = false);

  unsigned nLayers() const { return nLayers_; }
  unsigned nIpus() const { return static_cast<unsigned>(shards_.size()); }
  std::size_t nAttention() const { return shards_.front().plan.attention.size(); }
  const Plan &plan(unsigned ipu) const { return shards_[ipu].plan; }
  const Kernel &kernel(std::size_t index) const;
  std::uint64_t streamingBytes(unsigned ipu) const { return shards_[ipu].streamingBytes; }
  bool extendedMemory() const;
  poplar::Engine &engine() { return *engine_; }

  // As those of Session; layers are numbered over all IPUs.
  std::vector<std::uint32_t> lengths(unsigned layer) const;
  void write(const std::uint16_t *key, const std::uint16_t *value, unsigned nTokens,
             const std::vector<std::uint32_t> &counts, unsigned layer);
  void read(std::uint16_t *key, std::uint16_t *value, unsigned nTokens, unsigned layer);
  void reset(unsigned layer);
  void append(const std::uint16_t *key, const std::uint16_t *value,
              const std::vector<std::uint32_t> &active, unsigned layer);
  void attention(std::size_t index, const std::uint16_t *query, std::uint16_t *output,
                 unsigned layer);
  void assumeLengths(const std::vector<std::uint32_t> &lengths);
  // All layers in one launch, each with the output of the one before as its query: query, output
  // {batch, nHeads, headDim}. What a token's attention takes, without the rest of the model.
  void attendAll(std::size_t index, const std::uint16_t *query, std::uint16_t *output);

private:
  struct Shard {
    Shard(const Share &part, poplar::Graph tiles) : share(part), graph(std::move(tiles)) {}
    Share share;
    poplar::Graph graph;
    Plan plan;
    Cache cache;
    std::unique_ptr<HostCache> host;
    std::uint64_t streamingBytes = 0;
    poplar::Tensor query, key, value, active;
    std::vector<poplar::Tensor> outputs;
    std::vector<poplar::Function> attend;
    poplar::Function append;
    HostTensor writeQuery, writeKey, writeValue, writeActive;
    std::vector<HostTensor> readOutputs;
    unsigned firstProgram = 0; // append, then each attention
  };
  void checkLayer(const char *op, unsigned layer) const;
  void checkIndex(std::size_t index) const;
  void addShard(poplar::Graph &graph, const Share &share, const Programs &programs);
  void addAttention(Shard &shard);
  void addAppend(Shard &shard);
  void addWhole(poplar::Graph &graph);
  void addPrograms(poplar::Graph &graph, bool append, bool stacked);
  poplar::program::Sequence stackOfLayers(poplar::Graph &graph, std::size_t index);
  poplar::program::Sequence stackOfHeads(poplar::Graph &graph, std::size_t index);
  // Between the host's tensors on IPU 0 and the shares: one copy for all IPUs.
  poplar::program::Program scatter(const poplar::Tensor &whole, poplar::Tensor Shard::*part,
                                   std::size_t extent, const char *name) const;
  poplar::program::Program gather(std::size_t index) const;
  poplar::program::Sequence attendOnAll(std::size_t index) const;
  void compile(poplar::Graph &graph);
  // The shard that has a layer, and its number there.
  Shard &shardOf(unsigned layer);
  const Shard &shardOf(unsigned layer) const;
  unsigned layerOf(const Shard &shard, unsigned layer) const {
    return layer - shard.share.firstLayer;
  }
  // The part of an array {batch, nKvHeads, each} that a shard has, and back.
  std::vector<std::uint16_t> partOf(const Shard &shard, const std::uint16_t *whole,
                                    std::size_t each) const;
  void putPart(const Shard &shard, const std::vector<std::uint16_t> &part, std::uint16_t *whole,
               std::size_t each) const;
  template <class T> std::vector<T> ofBatch(const Shard &shard, const std::vector<T> &all) const;
  void checkBatch(const char *op, std::size_t n) const;

  Shape shape_;
  unsigned nLayers_;
  Split split_;
  poplar::Device device_;
  std::vector<Shard> shards_;
  // Split::heads, on IPU 0.
  poplar::Tensor query_, key_, value_, active_;
  std::vector<poplar::Tensor> outputs_;
  HostTensor writeQuery_, writeKey_, writeValue_, writeActive_;
  std::vector<HostTensor> readOutputs_;
  std::vector<poplar::program::Program> programs_;
  unsigned firstProgram_ = 0, firstStack_ = 0;
  std::unique_ptr<poplar::Engine> engine_;
};

} // namespace sparq
