// SPDX-License-Identifier: Apache-2.0
#include "sparq/session.hpp"
#include <poplar/DeviceManager.hpp>
#include <poplar/IPUModel.hpp>

namespace sparq {

poplar::Device openDevice(const DeviceOptions &options) {
  if (options.device == "ipu") {
    poplar::DeviceManager manager = poplar::DeviceManager::createDeviceManager();
    for (poplar::Device &device : manager.getDevices(poplar::TargetType::IPU, 1))
      if (device.attach())
        return std::move(device);
    throw Error("device: an IPU must be present and free, got none");
  }
  if (options.device != "emulator")
    throw Error("device: device must be 'ipu' or 'emulator', got '" + options.device + "'");
  poplar::IPUModel model;
  if (options.nTiles != 0)
    model.tilesPerIPU = options.nTiles;
  poplar::Device device = model.createDevice();
  device.attach();
  bool streaming = false;
  try {
    streaming = device.supportsRemoteBuffers();
  } catch (const poplar::poplar_error &) { // Poplar's own model says so by throwing
  }
  if (!streaming)
    throw Error("device: the emulator must be built in place of the Poplar SDK, got the SDK, whose "
                "IPU Model has no streaming memory");
  return device;
}

std::string deviceUnavailable(const std::string &device) {
  try {
    DeviceOptions options;
    options.device = device;
    options.nTiles = device == "emulator" ? 1 : 0;
    openDevice(options);
    return "";
  } catch (const std::exception &error) {
    return error.what();
  }
}

} // namespace sparq
