// SPDX-License-Identifier: Apache-2.0
#include "sparq/session.hpp"
#include <cstdlib>
#include <dlfcn.h>
#include <fstream>
#include <poplar/DeviceManager.hpp>
#include <poplar/IPUModel.hpp>

namespace sparq {

namespace {

unsigned gcd(unsigned a, unsigned b) { return b == 0 ? a : gcd(b, a % b); }

const char *const codeletFile = "sparq_codelets.gp";

// The directory of the library or module that this function is part of.
std::string ownDirectory() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void *>(&addCodelets), &info) == 0 || info.dli_fname == nullptr)
    return ".";
  const std::string path = info.dli_fname;
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

} // namespace

std::vector<Share> shareOut(const Shape &shape, unsigned nLayers, unsigned nIpus, Split split) {
  std::vector<Share> shares(nIpus);
  if (split == Split::layers) {
    // Layer l is on IPU l * nIpus / nLayers.
    const auto first = [&](unsigned ipu) { return (ipu * nLayers + nIpus - 1) / nIpus; };
    for (unsigned ipu = 0; ipu != nIpus; ++ipu)
      shares[ipu] = {shape, first(ipu), first(ipu + 1) - first(ipu), 0, 0};
    return shares;
  }
  const unsigned heads = gcd(nIpus, shape.nKvHeads), rows = nIpus / heads;
  Shape part = shape;
  part.batch /= rows;
  part.nKvHeads /= heads;
  part.nHeads /= heads;
  for (unsigned ipu = 0; ipu != nIpus; ++ipu)
    shares[ipu] = {part, 0, nLayers, ipu / heads * part.batch, ipu % heads * part.nKvHeads};
  return shares;
}

Device openDevice(const DeviceOptions &options) {
  if (options.device == "ipu") {
#if !__has_include(<sparq_emulator/Errors.hpp>) // what the emulator lists is no IPU
    DeviceManager manager = DeviceManager::createDeviceManager();
    for (Device &device : manager.getDevices(TargetType::IPU, options.nIpus))
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
  IPUModel model;
  model.numIPUs = options.nIpus;
  if (options.nTiles != 0)
    model.tilesPerIPU = options.nTiles;
  Device device = model.createDevice();
  device.attach();
  bool streaming = false;
  try {
    streaming = device.supportsRemoteBuffers();
  } catch (const poplar_error &) { // Poplar's own model says so by throwing
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

std::string codeletsPath() {
  std::vector<std::string> tried;
  const char *const environment = std::getenv("SPARQ_CODELETS");
  const bool isNamed = environment && *environment;
  for (const std::string &candidate :
       {isNamed ? environment : ownDirectory(), std::string(isNamed ? "" : SPARQ_CODELETS_DIR)}) {
    if (candidate.empty())
      continue;
    const std::string path = candidate + "/" + codeletFile;
    if (std::ifstream(path).good())
      return path;
    tried.push_back(path);
  }
  std::string message = std::string("codelets: ") + codeletFile + " must exist; tried";
  for (std::size_t i = 0; i != tried.size(); ++i)
    message += (i ? ", " : " ") + tried[i];
  if (isNamed)
    message += ", which SPARQ_CODELETS names";
  throw Error(message);
}

void addCodelets(Graph &graph) {
  if (!graph.hasCodelet("sparq::Combine"))
    graph.addCodelets(codeletsPath());
}

} // namespace sparq
