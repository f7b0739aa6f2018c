// SPDX-License-Identifier: Apache-2.0
//
// The attention kernels: the one place that lists them. Sessions, PopART operators and bindings
// work on any entry. In Python the list is sparq_ipu/kernels.py; a test compares the two.
//
// To add a kernel: a source file in src/ that defines its entry, and its name here and in
// src/kernels.cpp.
#pragma once

#include "sparq/cache.hpp"
#include <string>
#include <vector>

namespace sparq {

// tiered: the key index and hot rows in SRAM, all rows in streaming memory
enum class Memory { streaming, sram, tiered };
const char *nameOf(Memory memory);

struct Steps; // src/context.hpp

// What settings a kernel takes: none, SparqSettings, or WindowSettings.
enum class Takes { nothing, sparq, window };
const char *nameOf(Takes takes);

struct Kernel {
  const char *name = nullptr;        // as plans and benchmarks call it
  const char *op = nullptr;          // what messages call it: "sparq_attention"
  const char *prefix = nullptr;      // of its steps in a profile: "sparq"
  Memory memory = Memory::streaming; // where it reads keys and values
  Takes takes = Takes::nothing;
  bool keyColumns = false; // reads keys by component too

  // How positions come on chip, for this placement and layout of a plan.
  Waves (*waves)(const Plan &plan, const Attention &attention, unsigned nTiles) = nullptr;
  // Bytes of its working tensors on the fullest tile.
  std::uint64_t (*need)(const Plan &plan, const PlannedAttention &attention,
                        unsigned nTiles) = nullptr;
  // Adds the attention to the program; see attend.
  Tensor (*build)(const Steps &steps, const PlannedAttention &attention,
                  const Tensor &query) = nullptr;
};

extern const Kernel denseSram, denseStreaming;     // dense_attention.cpp
extern const Kernel sparqStreaming, sparqTiered;   // sparq_attention.cpp
extern const Kernel windowStreaming, windowTiered; // window_attention.cpp

// All of them, in the order in which tables show them.
const std::vector<const Kernel *> &kernels();

// The kernel of this name. Throws Error where there is none, listing those there are.
const Kernel &kernelNamed(const std::string &op, const std::string &name);

// Decode attention of one query token over a cache, bit for bit docs/exactness.md: entry `index` of
// the attention that the cache was planned for.
//   query {batch, nHeads, headDim} HALF -> {batch, nHeads, headDim} HALF. Every length must be at
//   least 1.
Tensor attend(Graph &graph, const Cache &cache, std::size_t index, const Tensor &query,
              Sequence &program, const DebugContext &dc = {});

} // namespace sparq
