// SPDX-License-Identifier: Apache-2.0
// Floating-point exceptions: which events stop a tile, and whether a vertex had one.
#pragma once

#include <poplar/OptionFlags.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "../popc/codelet_abi.hpp"

namespace poplar {
namespace core {

// What a tile's control register holds: the events that stop it, and how halves overflow. As on a
// device.
enum FloatingPointControl : std::uint32_t {
  fpInvalid = 1u << 0,
  fpDivideByZero = 1u << 1,
  fpOverflow = 1u << 2,
  fpStochasticRounding = 1u << 19,
  fpNanOnOverflow = 1u << 20,
  fpEvents = fpInvalid | fpDivideByZero | fpOverflow
};

/// The half of an overflow on this thread's tile; the event is among the host's flags from then on.
std::uint16_t overflowedHalf(std::uint16_t sign);

/// The vertex types of the library's own, which read and write a tile's register.
std::vector<const codelet_abi::Vertex *> floatingPointVertices();

/// Throws invalid_option unless those options that are about it are true or false.
void checkFloatingPointOptions(const OptionFlags &options);

/// The registers of an engine's tiles. They keep what they hold from program to program.
class FloatingPoint {
public:
  /// As an engine's options have it.
  void load(const OptionFlags &options, unsigned tiles);
  std::uint32_t of(unsigned tile) const { return control_[tile]; }

  /// This thread now stands for a tile.
  void enter(unsigned tile);

private:
  std::vector<std::uint32_t> control_; // by tile
};

/// Before a vertex runs on the tile that the thread stands for: no event yet.
void clearEvents();
/// After it ran: the name of the first event that `control` stops at, or nullptr.
const char *stoppingEvent(std::uint32_t control);

} // namespace core
} // namespace poplar
