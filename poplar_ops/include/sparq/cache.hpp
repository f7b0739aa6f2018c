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
// on the same tiles. A program sets `layerNumber`, loads that layer, and stores
// it again if it has changed it.
struct Cache {
  std::string name;
  Plan plan;
  Tensor filled;       // {nTasks} UNSIGNED_INT: positions held
  Tensor storedFilled; // {nTasks, 1, nLayers}: of all layers, if there are several
  Tensor layerNumber;  // {} UNSIGNED_INT on tile 0; only with several layers
  Tensor layer; // {slots, parts} UNSIGNED_INT: the same on every part, since the last load; 0 with
                // one layer
  Function load, store; // what all programs call for that; made with the cache
  std::vector<std::shared_ptr<const Store>> stores; // of the kinds that the plan lists
  // What programs over it go in step with: those of other IPUs' caches, or none.
  std::shared_ptr<Lockstep> lockstep = std::make_shared<Lockstep>();

  const CacheLayout &layout() const { return plan.layout; }
  // Numbers to add to a row, layer by layer.
  unsigned layerRows() const { return static_cast<unsigned>(plan.layout.layerRows()); }
  // What it takes of the IPU's streaming memory.
  std::uint64_t streamingBytes(const Target &target) const;
  // Whether programs can append to it.
  bool grows() const { return layout().positionsPerRow == 1; }
};

// Adds this library's codelets to the graph, once. Their .gp file is where this library was
// installed or built, or where the environment variable SPARQ_CODELETS says. Throws Error where it
// is not found, listing what was tried.
void addCodelets(Graph &graph);
std::string codeletsPath();

// Allocates the cache: `name` makes its handles unique ("<name>/rows", ...). One that a HostCache
// writes (`hostWrites`) has the spare rows in streaming memory that this needs: see RemoteRows.
Cache createCache(Graph &graph, const Plan &plan, const std::string &name, bool hostWrites = true,
                  std::shared_ptr<Lockstep> lockstep = nullptr);

// Throws Error unless programs can append to the cache.
void checkGrows(const char *op, const Cache &cache);

// Appends one position to every task whose `active` is 1.
//   key, value  {batch, nKvHeads, headDim} HALF;  active {batch} UNSIGNED_INT, 0 or 1. The caller
//   sees to it that no length passes the capacity.
void append(Graph &graph, const Cache &cache, const Tensor &key, const Tensor &value,
            const Tensor &active, Sequence &program, const DebugContext &dc = {});

// ---- layers. Several layers of one shape share their programs: a program works on the state of
// one layer, which it loads first, and stores again where it has altered it. So vertices and code
// do not grow with the layers. With one layer these do nothing.

// Makes layer cache.layerNumber the one that the program works on.
void loadLayer(const Cache &cache, Sequence &program, const DebugContext &dc = {});

// Makes cache.layerNumber a number that the program is built with; `together`: in step with other
// caches.
void selectLayer(Graph &graph, const Cache &cache, unsigned layer, Sequence &program,
                 const DebugContext &dc = {}, Lockstep *together = nullptr);

// Keeps what the program made of the layer that it loaded.
void storeLayer(const Cache &cache, Sequence &program, const DebugContext &dc = {});

// Makes cache.load and cache.store, of a cache with several layers.
void addLayerFunctions(Graph &graph, Cache &cache);

// ---- on a device without a host at hand, as for PopART's operators: begin empty, take a whole
// prompt (prefill), and see to it that no row gets more than it has room for

// Makes the cache, every layer of it, empty whenever the program is loaded.
void initialiseCache(Graph &graph, const Cache &cache);

// Prefill: where lengths[b] is not negative, batch element b then holds the first lengths[b] (at
// most n) of these tokens and no others; elsewhere it stays as it is. What comes out is, bit for
// bit, what appending the tokens one by one to an empty element leaves.
//   key, value  {batch, nKvHeads, n, headDim} HALF, n in [1, capacity];  lengths {batch} INT
// Throws Error where the cache does not hold one position a row. The program has a part for each
// batch element, so that a few can be replaced at the cost of a few; one part moves a chunk of
// positions of every KV head at a time.
void fillCache(Graph &graph, const Cache &cache, const Tensor &key, const Tensor &value,
               const Tensor &lengths, Sequence &program, const DebugContext &dc = {});

// {batch} UNSIGNED_INT for append: 1 where requested {batch} INT is not 0 and the element holds
// less than the capacity of its shape, else 0.
Tensor activeTokens(Graph &graph, const Cache &cache, const Tensor &requested, Sequence &program,
                    const DebugContext &dc = {});

// {batch} INT: positions that each element holds at this point of the program.
Tensor heldPositions(Graph &graph, const Cache &cache, Sequence &program,
                     const DebugContext &dc = {});

} // namespace sparq
