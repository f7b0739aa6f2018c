// SPDX-License-Identifier: Apache-2.0
// What codelets get that read their tile's cycle counter.
#include <sparq_emulator/DeviceModel.hpp>

#include <chrono>
#include <cstdlib>
#include <iostream>

#include "errors.hpp"
#include "random.hpp"

namespace poplar {
namespace core {

// What a tile does within a vertex has no modelled time. So the counter is an error, or counts
// this host's time at a tile's clock: programs run then, and their figures are of this host.
std::uint64_t tileCycles() {
  static const bool wanted = [] {
    const char *const counter = std::getenv("SPARQ_EMULATOR_CYCLE_COUNTER");
    if (!counter || !*counter)
      return false;
    if (std::string(counter) != "host")
      throw errors::bad_environment("SPARQ_EMULATOR_CYCLE_COUNTER must be host, got '" +
                                    std::string(counter) + "'");
    std::cerr
        << "emulator: warning: a tile's cycle counter counts the time of this host, which says "
           "nothing of an IPU\n";
    return true;
  }();
  if (!wanted)
    throw errors::no_cycle_counter(
        "__builtin_ipu_get_scount: not implemented in the emulator: the cycles of a "
        "vertex are not modelled. With SPARQ_EMULATOR_CYCLE_COUNTER=host it counts "
        "the time of this host instead");
  static const auto start = std::chrono::steady_clock::now();
  const std::chrono::duration<double> since = std::chrono::steady_clock::now() - start;
  return static_cast<std::uint64_t>(since.count() * sparq::emulator::DeviceModel().clock);
}

} // namespace core
} // namespace poplar
