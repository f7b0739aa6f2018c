// SPDX-License-Identifier: Apache-2.0
// The list of IPUs: none, or, where SPARQ_EMULATOR_IPUS asks for them, emulated ones.
#include <poplar/DeviceManager.hpp>
#include <poplar/IPUModel.hpp>

#include <cstdlib>
#include <mutex>
#include <set>

#include "core.hpp"

namespace poplar {

using core::Access;

namespace core {

namespace {

constexpr unsigned mostIPUs = 64; // that links join without a gateway between

// IPUs that a device of this process is attached to.
std::mutex attachedMutex;
std::set<unsigned> attachedIPUs;

unsigned listedIPUs() {
  const char *env = std::getenv("SPARQ_EMULATOR_IPUS");
  if (!env || !*env)
    return 0;
  char *end = nullptr;
  const unsigned long n = std::strtoul(env, &end, 10);
  if (*end || n > mostIPUs || (n & (n - 1)) != 0)
    throw errors::bad_environment("SPARQ_EMULATOR_IPUS must be 0 or a power of two up to " +
                                  std::to_string(mostIPUs) + ", got '" + env + "'");
  return static_cast<unsigned>(n);
}

// Single IPUs first, then groups of 2, of 4, ... neighbours, as partitions of a machine list them.
std::vector<DeviceInfo> listed() {
  std::vector<DeviceInfo> all;
  const unsigned n = listedIPUs();
  for (unsigned group = 1; group != 0 && group <= n; group *= 2)
    for (unsigned first = 0; first != n; first += group) {
      DeviceInfo d;
      d.id = static_cast<unsigned>(all.size());
      d.target = Target::createIPUTarget(group, "ipu2");
      d.listed = true;
      d.attached = false;
      d.firstIPU = first;
      all.push_back(std::move(d));
    }
  return all;
}

} // namespace

// Of a listed device; others are nobody else's.
bool attachIPUs(DeviceInfo &d) {
  if (!d.listed || d.attached) {
    d.attached = true;
    return true;
  }
  const std::lock_guard<std::mutex> lock(attachedMutex);
  for (unsigned i = 0; i != d.target.getNumIPUs(); ++i)
    if (attachedIPUs.count(d.firstIPU + i))
      return false;
  for (unsigned i = 0; i != d.target.getNumIPUs(); ++i)
    attachedIPUs.insert(d.firstIPU + i);
  d.attached = true;
  return true;
}

void detachIPUs(DeviceInfo &d) {
  if (d.listed && d.attached) {
    const std::lock_guard<std::mutex> lock(attachedMutex);
    for (unsigned i = 0; i != d.target.getNumIPUs(); ++i)
      attachedIPUs.erase(d.firstIPU + i);
  }
  d.attached = false;
}

} // namespace core

DeviceManager DeviceManager::createDeviceManager() { return {}; }

std::size_t DeviceManager::getNumDevices() const { return core::listed().size(); }

std::vector<Device> DeviceManager::getDevices(const OptionFlags &) const {
  std::vector<Device> r;
  for (core::DeviceInfo &d : core::listed())
    r.push_back(Access::makeDevice(std::move(d)));
  return r;
}

std::vector<Device> DeviceManager::getDevices(TargetType type, unsigned requiredNumIPUs,
                                              const OptionFlags &) const {
  std::vector<Device> r;
  if (type == TargetType::CPU) {
    r.push_back(Device::createCPUDevice(requiredNumIPUs));
  } else if (type == TargetType::IPU_MODEL) {
    IPUModel model;
    model.numIPUs = requiredNumIPUs;
    r.push_back(model.createDevice());
  } else if (type == TargetType::IPU) {
    for (core::DeviceInfo &d : core::listed())
      if (d.target.getNumIPUs() == requiredNumIPUs)
        r.push_back(Access::makeDevice(std::move(d)));
  }
  return r;
}

Device DeviceManager::getDevice(unsigned deviceManagerId, const OptionFlags &) const {
  std::vector<core::DeviceInfo> all = core::listed();
  if (all.empty())
    throw errors::no_device("getDevice: there is no IPU on this machine, got id " +
                            std::to_string(deviceManagerId));
  if (deviceManagerId >= all.size())
    throw errors::no_device("getDevice: id must be below " + std::to_string(all.size()) + ", got " +
                            std::to_string(deviceManagerId));
  return Access::makeDevice(std::move(all[deviceManagerId]));
}

std::vector<unsigned> DeviceManager::getChildDeviceIds(unsigned parentId,
                                                       unsigned numChildDeviceIpus) const {
  const std::vector<core::DeviceInfo> all = core::listed();
  std::vector<unsigned> r;
  if (parentId >= all.size())
    return r;
  const core::DeviceInfo &parent = all[parentId];
  for (const core::DeviceInfo &d : all)
    if (d.target.getNumIPUs() == numChildDeviceIpus && d.firstIPU >= parent.firstIPU &&
        d.firstIPU + numChildDeviceIpus <= parent.firstIPU + parent.target.getNumIPUs())
      r.push_back(d.id);
  return r;
}

} // namespace poplar
