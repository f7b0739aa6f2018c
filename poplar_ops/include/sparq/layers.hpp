// SPDX-License-Identifier: Apache-2.0
//
// Several layers of one shape share their programs: a program works on the state of one layer,
// which it loads first, and stores again where it has altered it. So vertices and code do not grow
// with the layers; what does is the memory that holds them. With one layer both do nothing.
#pragma once

#include "sparq/cache.hpp"

namespace sparq {

// Makes layer cache.layerNumber the one that the program works on.
void loadLayer(const Cache &cache, poplar::program::Sequence &program,
               const poplar::DebugContext &dc = {});

// Makes cache.layerNumber a number that the program is built with; `together`: in step with other
// caches.
void selectLayer(poplar::Graph &graph, const Cache &cache, unsigned layer,
                 poplar::program::Sequence &program, const poplar::DebugContext &dc = {},
                 Lockstep *together = nullptr);

// Keeps what the program made of the layer that it loaded.
void storeLayer(const Cache &cache, poplar::program::Sequence &program,
                const poplar::DebugContext &dc = {});

} // namespace sparq
