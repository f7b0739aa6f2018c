// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "FieldTypes.hpp"
#include "InOutTypes.hpp"

#define WORKER_ALIGN

namespace poplar {

struct VertexBase {};

/// One worker runs compute().
struct Vertex : VertexBase {};

/// Every worker of the tile runs compute(workerId).
struct MultiVertex : VertexBase {
  static constexpr unsigned numWorkers() { return 6; }
};

/// The supervisor runs compute().
struct SupervisorVertex : VertexBase {};

template <bool isSupervisor> struct SupervisorVertexIf : Vertex {};
template <> struct SupervisorVertexIf<true> : SupervisorVertex {};

} // namespace poplar
