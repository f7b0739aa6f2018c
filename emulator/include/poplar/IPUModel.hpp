// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "Device.hpp"

namespace poplar {

/// A model of an IPU on which programs run without hardware. Edit the fields, then createDevice().
struct IPUModel {
  enum class RelativeSyncDelayType { AUTO, NO_DELAY };

  unsigned numIPUs = 1;
  unsigned tilesPerIPU = 1472;
  unsigned numWorkerContexts = 6;
  unsigned memoryBytesPerTile = 638976;
  double tileClockFrequency = 1.85e9;
  unsigned exchangeBytesPerCycle = 4;
  unsigned memcpyBytesPerCycle = 8;
  unsigned minIPUSyncDelay = 15;
  unsigned globalSyncCycles = 500;
  unsigned instructionBytes = 4;
  RelativeSyncDelayType relativeSyncDelay = RelativeSyncDelayType::AUTO;
  bool compileIPUCode = false;
  std::string IPUVersion;

  /// "ipu2" (GC200), "ipu21" (Bow); others throw invalid_machine_model.
  IPUModel(char const *ipuVersion = "ipu2");
  Device createDevice(OptionFlags opts = {}, bool accurateHalf = false,
                      unsigned deviceManagerId = std::numeric_limits<unsigned>::max()) const;
};

} // namespace poplar
