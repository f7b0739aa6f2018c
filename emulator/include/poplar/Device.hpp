// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "Target.hpp"

namespace poplar {

namespace core {
struct DeviceInfo;
}

/// Something programs run on. Move-only.
class Device {
public:
  Device();
  Device(Device &&) noexcept = default;
  Device &operator=(Device &&) noexcept = default;
  Device(const Device &) = delete;
  Device &operator=(const Device &) = delete;

  unsigned getId() const;
  const Target &getTarget() const;
  bool attach() const;
  bool isAttached() const;
  void detach() const;
  void getDriverVersion(unsigned &major, unsigned &minor, unsigned &point) const;
  bool supportsRemoteBuffers() const;
  bool hasGateway() const;
  std::vector<unsigned> getDriverIDs() const;
  /// An emulated device has none.
  std::map<std::string, std::string> getAttributes() const { return {}; }
  void reset() const {}
  Device createVirtualDevice(unsigned tilesPerIPU);

  static Device createCPUDevice(unsigned numIPUs = 1);
  static Device createSimulatorDevice(const Target &target, const OptionFlags &options = {});

private:
  friend struct core::Access;
  std::shared_ptr<core::DeviceInfo> info;
};

} // namespace poplar
