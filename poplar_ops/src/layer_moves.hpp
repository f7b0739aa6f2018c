// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sparq/layers.hpp"

namespace sparq {

// Makes cache.load and cache.store, of a cache with several layers.
void addLayerFunctions(poplar::Graph &graph, Cache &cache);

} // namespace sparq
