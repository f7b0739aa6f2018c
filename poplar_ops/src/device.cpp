// SPDX-License-Identifier: Apache-2.0
#include "sparq/session.hpp"
#include <poplar/DeviceManager.hpp>
#include <poplar/IPUModel.hpp>

namespace sparq {

poplar::Device openDevice(const DeviceOptions &options) {
  if (options.device == "ipu") {
#if !__has_include(<sparq_emulator/Errors.hpp>) // what the emulator lists is no IPU
    poplar::DeviceManager manager = poplar::DeviceManager::createDeviceManager();
    for (poplar::Device &device : manager.getDevices(poplar::TargetType::IPU, options.nIpus))
      if (device.attach())
        return std::move(device);
#endif
    throw Error(options.nIpus == 1
                    ? std::string("device: an IPU must be present and free, got none")
                    : "device: a device of n_ipus=" + std::to_string(options.nIpus) +
                          " IPUs must be present and free, got none");
  }
  if (options.device != "emulator")
    throw Error("device: device must be 'ipu' or 'emulator', got '" + options.device + "'");
  poplar::IPUModel model;
  model.numIPUs = options.nIpus;
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
