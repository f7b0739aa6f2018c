// SPDX-License-Identifier: Apache-2.0
// The order in which the workers of a MultiVertex run, one after another.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "random.hpp"

namespace poplar {
namespace core {

using WorkerList = std::array<unsigned, workersPerTile>;

/// From 0 on, or with SPARQ_EMULATOR_WORKER_ORDER=SEED at random: another order for each vertex and
/// each time that its compute set runs. The same seed gives the same orders, on any number of host
/// threads.
class WorkerOrder {
public:
  /// Throws invalid_option for a seed that is not a number below 2^64.
  WorkerOrder();
  /// The next compute set starts. No vertex may be running.
  void next() { ++computeSets_; }
  /// Of `calls` workers of the compute set's vertex `number`: which one is first, second, ...
  WorkerList of(std::size_t number, unsigned calls) const;

private:
  bool isRandom_ = false;
  std::uint64_t seed_ = 0, computeSets_ = 0;
};

} // namespace core
} // namespace poplar
