// SPDX-License-Identifier: Apache-2.0
// The worker that runs a vertex, and its random numbers: what the IPU's builtins ask for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../popc/codelet_abi.hpp"

namespace poplar {
namespace core {

constexpr unsigned workersPerTile = 6;

/// A number that looks like none near it (splitmix64).
std::uint64_t mixed(std::uint64_t x);

/// The worker that this thread stands for.
codelet_abi::Worker *currentWorker();

/// Of the counter of the worker's tile (cycle_counter.cpp).
std::uint64_t tileCycles();

/// The vertex types of the library's own, which move the generators' states.
std::vector<const codelet_abi::Vertex *> builtInVertices();

/// Every worker's generator. A device keeps its states from program to program; where they start is
/// not defined there, and here the same for every engine.
class Generators {
public:
  /// Makes those of the tiles below `tiles`; none is made by `enter`, which threads call.
  void reserve(unsigned tiles);
  /// This thread now stands for a worker of a tile.
  void enter(unsigned tile, unsigned worker);

private:
  std::vector<std::uint64_t> states_; // two words a worker
};

} // namespace core
} // namespace poplar
