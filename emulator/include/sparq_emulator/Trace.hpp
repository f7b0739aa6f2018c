// SPDX-License-Identifier: Apache-2.0
// A run as a timeline. Times are modelled: each step stands once, with all of its executions.
// Only the emulator has this header.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "Counters.hpp"
#include "DeviceModel.hpp"

namespace sparq {
namespace emulator {

/// Whether steps that are compiled from now on keep the cycles of each tile, not of the busiest
/// alone.
void recordTiles(bool on);
bool recordsTiles();

/// Cycles of each tile in compute sets, over all executions; empty where they were not recorded.
std::vector<std::uint64_t> cyclesOfTiles(const std::vector<StepCount> &steps);

/// Events of Chrome's trace format, for its list `traceEvents`: lanes for steps, for each category
/// of time and for the busiest tiles.
std::string traceEvents(const std::vector<StepCount> &steps, const DeviceModel &model,
                        const std::string &name, unsigned process = 1);
/// A whole file.
void writeTrace(std::ostream &os, const std::vector<StepCount> &steps, const DeviceModel &model,
                const std::string &name);

} // namespace emulator
} // namespace sparq
