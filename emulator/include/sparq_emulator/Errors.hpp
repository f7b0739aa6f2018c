// SPDX-License-Identifier: Apache-2.0
// Details of an emulator's exception beyond its text. The SDK has no such header.
#pragma once

#include <cstdint>
#include <string>

#include <poplar/exceptions.hpp>

namespace sparq {
namespace emulator {

/// A graph does not fit tile memory: thrown when it is compiled. Code that also builds against the
/// SDK catches the base class.
struct OutOfTileMemory : poplar::graph_memory_allocation_error {
  std::uint64_t need; // bytes on the fullest tile
  std::uint64_t room; // bytes that a tile of the target has
  unsigned tile;      // the fullest

  OutOfTileMemory(const std::string &message, std::uint64_t need, std::uint64_t room, unsigned tile)
      : poplar::graph_memory_allocation_error(message + " [out_of_tile_memory]"), need(need),
        room(room), tile(tile) {}
};

} // namespace emulator
} // namespace sparq
