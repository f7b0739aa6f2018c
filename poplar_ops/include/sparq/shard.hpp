// SPDX-License-Identifier: Apache-2.0
//
// A session on one IPU: a cache, the programs over it, and the tensors that pass data between the
// host and the programs.
#pragma once

#include "sparq/host_cache.hpp"
#include "sparq/shares.hpp"
#include <memory>
#include <optional>
#include <poplar/Program.hpp>
#include <string>
#include <vector>

namespace sparq {

// A tensor that programs take or give, and how the host writes or reads it.
struct Port {
  poplar::Tensor tensor;
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
  poplar::Graph &graph;
  const Placement &placement;
  Shape shape;
  std::string prefix;

  void addQuery(Ports &ports) const;
  void addAppend(Ports &ports) const;
  void addOutput(Ports &ports, const std::string &step, poplar::Tensor output = {}) const;

private:
  poplar::Tensor add(unsigned heads, const std::string &name) const;
  Port writable(const poplar::Tensor &tensor, const std::string &name) const;
};

struct Shard {
  // The cache, in step with those that `lockstep` has.
  Shard(const Share &share, poplar::Graph graph, const Programs &programs,
        const std::string &prefix, bool shared, const std::shared_ptr<Lockstep> &lockstep);
  // Its programs, in lockstep too: those that the last IPU returns are of all IPUs, those of the
  // others are empty. `shared`: several programs call each of them, so they become functions.
  void addPrograms(const Programs &programs, bool shared,
                   const std::shared_ptr<Lockstep> &lockstep);

  Share share;
  poplar::Graph graph; // of its tiles
  Plan plan;
  std::string prefix; // of names
  Cache cache;
  std::optional<HostCache> host;  // of this IPU alone
  std::vector<std::string> steps; // of each attention, in a profile
  Ports ports;
  // Each works on the layer that was selected.
  poplar::program::Program append;
  std::vector<poplar::program::Program> attend;

  unsigned own(unsigned layer) const { return layer - share.firstLayer; }
  // What the cache takes of the IPU's streaming memory.
  std::uint64_t streamingBytes() const;

private:
  poplar::Tensor attendNothing(poplar::program::Sequence &program, const std::string &step);
};

} // namespace sparq
