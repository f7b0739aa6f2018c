// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "Graph.hpp"
#include "Program.hpp"

namespace poplar {

// The states of the generators of random numbers, for each tile and worker four words: `unsigned`
// of shape {tiles of the graph, 6, 4}. Each must lie on its tile, else it is sent there.
Tensor getHwSeeds(Graph &graph, program::Sequence &prog, const DebugContext &debugContext = {});
void setHwSeeds(Graph &graph, const Tensor &hwSeeds, program::Sequence &prog,
                const DebugContext &debugContext = {});

} // namespace poplar
