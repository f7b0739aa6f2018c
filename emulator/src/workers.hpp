// SPDX-License-Identifier: Apache-2.0
// Workers that see one another: what a device does not order, found by running them in other
// orders.
#pragma once

#include "plan.hpp"
#include "random.hpp"
#include "worker_order.hpp"

namespace poplar {
namespace core {

/// Runs compute(0) .. compute(calls - 1) of a vertex and returns the AND of what they return.
/// `base` is the block of device memory, [begin, end) all that the workers may write. Throws
/// application_runtime_error where two workers write to one 32-bit word, or where what one computes
/// depends on whether another has run, or on what an Output held before: all run in `order` and the
/// other way round. Every run of a worker takes the same random numbers.
bool runChecked(std::uint8_t *base, const ComputeSetPlan &plan, const VertexPlan &v,
                const Written *begin, const Written *end, const WorkerList &order,
                Generators &generators);

} // namespace core
} // namespace poplar
