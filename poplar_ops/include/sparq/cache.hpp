// SPDX-License-Identifier: Apache-2.0
//
// The KV cache of one attention layer, as a graph sees it.
#pragma once

#include "sparq/plan.hpp"
#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>
#include <string>

namespace sparq {

// Streaming memory (one row is what one remote copy moves):
//   rows        positionsPerRow * headDim  keys: row task * rowsPerTask() + position /
//                                          positionsPerRow, then a scratch row for each task;
//                                          values: the same from row valueRow() on. One buffer, so
//                                          that one remote copy can bring both.
//   keyColumns  chunk                      row (task * headDim + component) * nChunks + chunk, then
//                                          scratch rows
// SRAM:
//   filled    {nTasks} UNSIGNED_INT                              positions held
//   valueSum  {nTasks, headDim} FLOAT                            running sum of the values
//   tail      {nTasks, nTailParts, headDim, tailLength} HALF          key columns of the unfilled
//   chunk keys, values {nTasks, parts, length, headDim} HALF           instead of the row buffers,
//   for dense-sram
struct Cache {
  std::string name;
  Plan plan;
  bool resident = false;
  poplar::RemoteBuffer rows, keyColumns;
  poplar::Tensor filled, valueSum, tail;
  poplar::Tensor keys, values;

  std::size_t rowsPerTask() const { return plan.layout.capacity / plan.layout.positionsPerRow; }
  // How far behind its key a value is: rows of the keys.
  std::size_t valueRow() const { return plan.shape.nTasks() * (rowsPerTask() + 1); }
  std::size_t scratchColumn() const {
    return std::size_t(plan.shape.nTasks()) * plan.shape.headDim * plan.layout.nChunks();
  }
};

// Adds this library's codelets to the graph, once. `directory` holds the .gp files; empty: where
// this library was installed or built, or the environment variable SPARQ_CODELETS. Throws Error
// where they are not found, listing what was tried.
void addCodelets(poplar::Graph &graph, const std::string &directory = "");

// The file that addCodelets loads. Throws as that does.
std::string codeletsPath(const std::string &directory = "");

// Allocates the cache: `name` makes its handles unique ("<name>/rows", ...). With `resident`,
// keys and values stay in SRAM and can only be filled by the host.
Cache createCache(poplar::Graph &graph, const Plan &plan, const std::string &name,
                  bool resident = false);

// Appends one position to every task whose `active` is 1.
//   key, value  {batch, nKvHeads, headDim} HALF;  active {batch} UNSIGNED_INT, 0 or 1. The caller
//   sees to it that no length passes the capacity.
void append(poplar::Graph &graph, const Cache &cache, const poplar::Tensor &key,
            const poplar::Tensor &value, const poplar::Tensor &active,
            poplar::program::Sequence &program, const poplar::DebugContext &dc = {});

} // namespace sparq
