// SPDX-License-Identifier: Apache-2.0
// Replicas that take different ways through a program.
#pragma once

#include "program_impl.hpp"
#include "regions.hpp"

namespace poplar {
namespace core {

/// Throws graph_replication_error where a replicated graph's control flow may differ between
/// replicas around what all of them must take part in: copies to and from the host and streaming
/// memory, copies between replicas, and syncs of all. A device would wait for ever there. The
/// programs must have been compiled: they are taken to be correct otherwise.
void checkReplicas(const GraphImpl &graph, ArrayRef<program::Program> programs);

} // namespace core
} // namespace poplar
