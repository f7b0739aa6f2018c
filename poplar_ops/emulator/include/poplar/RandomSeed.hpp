// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "Graph.hpp"
#include "Program.hpp"

namespace poplar {

// Of the generators of random numbers on tiles, which the emulator has not: these throw.
Tensor getHwSeeds(Graph &graph, program::Sequence &prog, const DebugContext &debugContext = {});
void setHwSeeds(Graph &graph, const Tensor &hwSeeds, program::Sequence &prog,
                const DebugContext &debugContext = {});

} // namespace poplar
