// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "Device.hpp"

namespace poplar {

/// Lists the IPUs of this machine: none, since this library drives no hardware, unless the
/// environment variable SPARQ_EMULATOR_IPUS asks for emulated ones.
class DeviceManager {
public:
  DeviceManager() = default;
  DeviceManager(const DeviceManager &) = default;
  static DeviceManager createDeviceManager();
  std::size_t getNumDevices() const;
  std::vector<Device> getDevices(const OptionFlags &opts = {}) const;
  std::vector<Device> getDevices(TargetType type, unsigned requiredNumIPUs,
                                 const OptionFlags &opts = {}) const;
  Device getDevice(unsigned deviceManagerId, const OptionFlags &opts = {}) const;
  std::vector<unsigned> getChildDeviceIds(unsigned parentId, unsigned numChildDeviceIpus = 1) const;
};

} // namespace poplar
