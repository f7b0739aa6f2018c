// SPDX-License-Identifier: Apache-2.0
//
// The KV cache of one attention layer, as a graph sees it.
#pragma once

#include "sparq/plan.hpp"
#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>
#include <string>

namespace sparq {

// Where rows and columns are: CacheLayout (sparq/plan.hpp). In SRAM:
//
//   filled    {nTasks} UNSIGNED_INT                             positions held
//   valueSum  {nTasks, headDim} FLOAT                           running sum of the values
//   tail      {nTasks, headDim, tailWidth} HALF                 columns of the unfilled chunk
//   tailIndex {nTasks, headDim, ...} UNSIGNED_INT               with an index of few bits: records
//                                                               of its full blocks
//
// A resident cache has keys and values {nTasks, capacity, headDim} HALF in SRAM instead of the
// buffers; only the host can fill it.
//
// One in three tiers has, of all layers:
//
//   index      {nTasks, parts, nLayers, headDim, ...} UNSIGNED_INT  records of the full blocks of the
//                                                                   positions of each part
//   hot.keys   {nTasks, nSets, 4, nLayers, rows, headDim / 4} HALF  hot rows, by pairs of lanes
//   hot.values {nTasks, slices, nLayers, nSlots, width} HALF        by components
//   hot.held, hot.stamps  {nTasks, nOwners, nLayers, nWays} UNSIGNED_INT  what is in which slot, and
//                                                                         when it was last selected
//   hot.clock  {nTasks, nOwners} UNSIGNED_INT                       attention calls so far
//   hot.misses {nTasks} UNSIGNED_INT                                rows that the last call fetched
//
// One of which window attention remembers steps has, of all layers, in pieces by position (History in
// sparq/plan.hpp):
//
//   history.rows  {batch, nPieces, nLayers, nRecent * length} UNSIGNED_INT  shares of each step
//   history.sums  {batch, nPieces, nLayers, length} UNSIGNED_INT            of all of them
//   history.step  {batch, nPieces, nLayers} UNSIGNED_INT                    the row of the newest
//
// With several layers the first four are of the layer that is being worked on. What the others hold is in
// `stored`, each {nTasks, ..., nLayers * size}, on the same tiles. A program says which layer it
// works on by `layerNumber`, loads it (sparq/layers.hpp), and where it has altered it stores it.
//
//   layerNumber {} UNSIGNED_INT                 on tile 0; only with several layers
//   layer       {slots, parts} UNSIGNED_INT     the same on every part, since the last load; 0 with
//                                               one layer
struct Cache {
  std::string name;
  Plan plan;
  poplar::RemoteBuffer rows, keyColumns;
  poplar::Tensor filled, valueSum, tail, tailIndex;
  poplar::Tensor keys, values;
  poplar::Tensor index;
  struct {
    poplar::Tensor keys, values, held, stamps, clock, misses;
  } hot;
  struct {
    poplar::Tensor rows, sums, step;
  } history;
  poplar::Tensor layerNumber, layer;
  struct {
    poplar::Tensor filled, valueSum, tail, tailIndex;
  } stored;
  poplar::Function load, store; // what all programs call for that; made with the cache

  const CacheLayout &layout() const { return plan.layout; }
  // Numbers to add to a row, layer by layer.
  unsigned layerRows() const { return static_cast<unsigned>(plan.layout.layerRows()); }
  unsigned layerColumns() const {
    return static_cast<unsigned>(plan.layout.layerColumns(plan.placement.slots));
  }
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
                  bool hostWrites = true);

// Appends one position to every task whose `active` is 1.
//   key, value  {batch, nKvHeads, headDim} HALF;  active {batch} UNSIGNED_INT, 0 or 1. The caller
//   sees to it that no length passes the capacity.
void append(poplar::Graph &graph, const Cache &cache, const poplar::Tensor &key,
            const poplar::Tensor &value, const poplar::Tensor &active,
            poplar::program::Sequence &program, const poplar::DebugContext &dc = {});

} // namespace sparq
