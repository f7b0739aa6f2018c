// SPDX-License-Identifier: Apache-2.0
//
// The KV cache of one attention layer, as a graph sees it.
#pragma once

#include "sparq/lockstep.hpp"
#include "sparq/plan.hpp"
#include <memory>
#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>
#include <string>

namespace sparq {

class Store; // src/stores/store.hpp

// Lengths, and stores for everything else. With several layers, `filled` and what stores keep in
// SRAM under the name `state` belong to the current layer; the other layers' state lies beside it,
// on the same tiles. A program sets `layerNumber`, loads that layer (sparq/layers.hpp), and stores
// it again if it has changed it.
struct Cache {
  std::string name;
  Plan plan;
  poplar::Tensor filled;       // {nTasks} UNSIGNED_INT: positions held
  poplar::Tensor storedFilled; // {nTasks, 1, nLayers}: of all layers, if there are several
  poplar::Tensor layerNumber;  // {} UNSIGNED_INT on tile 0; only with several layers
  poplar::Tensor
      layer; // {slots, parts} UNSIGNED_INT: the same on every part, since the last load; 0 with
             // one layer
  poplar::Function load, store; // what all programs call for that; made with the cache
  std::vector<std::shared_ptr<const Store>> stores; // of the kinds that the plan lists
  // What programs over it go in step with: those of other IPUs' caches, or none.
  std::shared_ptr<Lockstep> lockstep = std::make_shared<Lockstep>();

  const CacheLayout &layout() const { return plan.layout; }
  // Numbers to add to a row, layer by layer.
  unsigned layerRows() const { return static_cast<unsigned>(plan.layout.layerRows()); }
  // What it takes of the IPU's streaming memory.
  std::uint64_t streamingBytes(const poplar::Target &target) const;
  // Why no program can append to it; empty if one can.
  std::string refusal() const;
};

// Adds this library's codelets to the graph, once. `directory` holds the .gp files; empty: where
// this library was installed or built, or the environment variable SPARQ_CODELETS. Throws Error
// where they are not found, listing what was tried.
void addCodelets(poplar::Graph &graph, const std::string &directory = "");

// The file that addCodelets loads. Throws as that does.
std::string codeletsPath(const std::string &directory = "");

// Allocates the cache: `name` makes its handles unique ("<name>/rows", ...). One that a HostCache
// writes (`hostWrites`) has the spare rows in streaming memory that this needs: see RemoteRows.
Cache createCache(poplar::Graph &graph, const Plan &plan, const std::string &name,
                  bool hostWrites = true, std::shared_ptr<Lockstep> lockstep = nullptr);

// Throws Error unless programs can append to the cache.
void checkGrows(const char *op, const Cache &cache);

// Appends one position to every task whose `active` is 1.
//   key, value  {batch, nKvHeads, headDim} HALF;  active {batch} UNSIGNED_INT, 0 or 1. The caller
//   sees to it that no length passes the capacity.
void append(poplar::Graph &graph, const Cache &cache, const poplar::Tensor &key,
            const poplar::Tensor &value, const poplar::Tensor &active,
            poplar::program::Sequence &program, const poplar::DebugContext &dc = {});

} // namespace sparq
