// SPDX-License-Identifier: Apache-2.0
// From counts to seconds. Times from here are modelled, never measured.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "Counters.hpp"

namespace sparq {
namespace emulator {

/// One IPU; the default is a Bow IPU. Where each number comes from, and how far it can be trusted:
/// docs/device_model.md. Do not edit the fitted ones by hand: bench/calibrate.py --write does.
struct DeviceModel {
  double clock = 1.85e9; // tile cycles per second
  unsigned tiles = 1472;
  double exchangeBytesPerCycle = 4; // in or out of one tile
  double exchangePieceCycles = 3;   // of a piece, beside its bytes
  std::uint64_t syncCycles = 150;   // internal sync
  std::uint64_t exchangeFixedCycles = 100;
  std::uint64_t computeSetFixedCycles = 165; // beside the start of its workers
  // A copy within a tile: cycles an element of a short piece, and bytes a cycle.
  double localElementCycles = 21.4;
  double localBytesPerCycle = 8;
  // Streaming memory, fitted on measurements of one Bow IPU. The overhead of a packet is in bytes
  // that would take as long. A remote copy has a fixed cost beside its packets. For the penalty of
  // shared rows see sharedRows().
  double streamingBytesPerSecond = 7370100000.0;
  double packetOverheadBytes = 35.562;
  double remoteCopySeconds = 2.0752e-06;
  double sharedRowPenalty = 0.097679;
  double sharedRowKneeBytes = 32768;
  double hostStreamBytesPerSecond = 5.5e9;
  // One link between IPUs, in one direction; and a hop of the message that all IPUs have met.
  double linkBytesPerSecond = 14602888806.4;
  double linkHopSeconds = 15e-9;

  std::uint64_t cycles(const StepCount &step) const; // on-chip cycles of one execution
  /// Cycles that a tile takes to send or receive so much, and to copy so much within itself.
  double transferCycles(std::uint64_t bytes, std::uint64_t pieces) const;
  double localCycles(const LocalCopy &copied) const;
  /// Seconds of one remote copy.
  double streamingSeconds(std::uint64_t bytes, std::uint64_t packets, std::uint64_t rows) const;
  /// By how much of its bytes' time a gather of 1 < rows < tiles takes longer, because some tiles
  /// share a row:
  ///     sharedRowPenalty * sqrt(1 - rows / tiles) * min(1, bytes of a row / sharedRowKneeBytes)
  double sharedRows(std::uint64_t bytes, std::uint64_t rows) const;
};

/// Modelled seconds by category; host launch overhead is not included.
struct ModelledTime {
  double compute = 0;  // worker cycles and the fixed cost of compute sets
  double exchange = 0; // between tiles, and copies within them
  double sync = 0;
  double streaming = 0; // remote buffers
  double hostStreams = 0;
  double links = 0; // between IPUs
  double total() const { return compute + exchange + sync + streaming + hostStreams + links; }
  double onChip() const { return compute + exchange + sync; }
};

ModelledTime modelledTime(const DeviceModel &model, const StepCount &step); // all its executions
ModelledTime modelledTime(const DeviceModel &model, const std::vector<StepCount> &steps);
/// What each step adds to the time of those before it: all of its own, or, beside others, what it
/// takes longer.
std::vector<ModelledTime> modelledTimes(const DeviceModel &model,
                                        const std::vector<StepCount> &steps);
/// For each IPU, the time of the steps that it takes part in.
std::vector<ModelledTime> modelledTimeByIPU(const DeviceModel &model,
                                            const std::vector<StepCount> &steps);
/// By the first `depth` components of the steps' debug paths.
std::map<std::string, ModelledTime> modelledTimeByStage(const DeviceModel &model,
                                                        const std::vector<StepCount> &steps,
                                                        unsigned depth = 1);

} // namespace emulator
} // namespace sparq
