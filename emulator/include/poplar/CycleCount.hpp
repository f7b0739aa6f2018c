// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "Graph.hpp"
#include "SyncType.hpp"

namespace poplar {

/// Counts the cycles of `prog` on a tile: UNSIGNED_INT[2], low word first. Modelled cycles here.
Tensor cycleCount(Graph &graph, program::Sequence &prog, unsigned tile, SyncType syncType,
                  const DebugContext &debugContext = {});
/// The cycle counter of a tile at this point of `prog`: UNSIGNED_INT[2].
Tensor cycleStamp(Graph &graph, program::Sequence &prog, unsigned tile, SyncType syncType,
                  const DebugContext &debugContext = {});
std::vector<Tensor> cycleStamp(Graph &graph, program::Sequence &prog,
                               const std::vector<unsigned> &tiles, SyncType syncType,
                               const DebugContext &debugContext = {});

} // namespace poplar
