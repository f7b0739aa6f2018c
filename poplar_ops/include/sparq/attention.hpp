// SPDX-License-Identifier: Apache-2.0
//
// Decode attention of one query token over a cache: dense and SparQ. Bit for bit docs/exactness.md.
#pragma once

#include "sparq/cache.hpp"

namespace sparq {

// Dense attention over all positions: from streaming memory, or from SRAM where the cache is
// resident.
//   query {batch, nHeads, headDim} HALF -> {batch, nHeads, headDim} HALF. Every length must be at
//   least 1.
poplar::Tensor denseAttention(poplar::Graph &graph, const Cache &cache, const poplar::Tensor &query,
                              poplar::program::Sequence &program,
                              const poplar::DebugContext &dc = {});

// SparQ attention with entry `index` of the settings that the cache was planned for.
//   query {batch, nHeads, headDim} HALF -> {batch, nHeads, headDim} HALF. Every length must be at
//   least 1.
poplar::Tensor sparqAttention(poplar::Graph &graph, const Cache &cache, const poplar::Tensor &query,
                              const SparqSettings &settings, std::size_t index,
                              poplar::program::Sequence &program,
                              const poplar::DebugContext &dc = {});

} // namespace sparq
