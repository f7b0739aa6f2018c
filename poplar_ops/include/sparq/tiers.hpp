// SPDX-License-Identifier: Apache-2.0
//
// What a cache in three tiers needs after rows of streaming memory were written other than by append.
#pragma once

#include "sparq/cache.hpp"

namespace sparq {

// Makes the key index anew, of the layer that is being worked on, from its rows and lengths.
void indexRows(poplar::Graph &graph, const Cache &cache, poplar::program::Sequence &program,
               const poplar::DebugContext &dc = {});
// Nothing of the layer is hot any more: its rows were replaced.
void forgetHot(poplar::Graph &graph, const Cache &cache, poplar::program::Sequence &program,
               const poplar::DebugContext &dc = {});
// Of tasks [firstTask, endTask) alone.
void forgetHot(poplar::Graph &graph, const Cache &cache, unsigned firstTask, unsigned endTask,
               poplar::program::Sequence &program, const poplar::DebugContext &dc = {});

} // namespace sparq
