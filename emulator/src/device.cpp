// SPDX-License-Identifier: Apache-2.0
// Targets and devices.
#include <poplar/IPUModel.hpp>

#include <functional>

#include "core.hpp"
#include "not_implemented.hpp"

namespace poplar {

using core::Access;
using core::TargetInfo;

namespace core {
Target Access::makeTarget(TargetInfo i) {
  Target t;
  t.info = std::make_shared<const TargetInfo>(std::move(i));
  return t;
}
Device Access::makeDevice(DeviceInfo i) {
  Device d;
  d.info = std::shared_ptr<DeviceInfo>(new DeviceInfo(std::move(i)), [](DeviceInfo *info) {
    detachIPUs(*info);
    delete info;
  });
  return d;
}
} // namespace core

Target::Target() : info(std::make_shared<const TargetInfo>()) {}

std::size_t Target::hash() const {
  std::hash<std::string> h;
  return h(info->system + "/" + info->arch + "/" + std::to_string(static_cast<int>(info->type)) +
           "/" + std::to_string(info->numIPUs) + "/" + std::to_string(info->tilesPerIPU) + "/" +
           std::to_string(info->numWorkerContexts) + "/" + std::to_string(info->bytesPerTile) +
           "/" + std::to_string(info->clock));
}
TargetType Target::getTargetType() const { return info->type; }
StringRef Target::getTargetSystemString() const { return info->system; }
StringRef Target::getTargetArchString() const { return info->arch; }
unsigned Target::getNumIPUs() const { return info->numIPUs; }
unsigned Target::getTilesPerIPU() const { return info->tilesPerIPU; }
unsigned Target::getNumTiles() const { return info->numIPUs * info->tilesPerIPU; }
unsigned Target::getNumWorkerContexts() const { return info->numWorkerContexts; }
unsigned Target::getBytesPerTile() const { return info->bytesPerTile; }
std::uint64_t Target::getMemoryBytes() const {
  return std::uint64_t(getNumTiles()) * info->bytesPerTile;
}
unsigned Target::getExchangeBytesPerCycle() const { return info->exchangeBytesPerCycle; }
unsigned Target::getMemcpyBytesPerCycle() const { return info->memcpyBytesPerCycle; }
unsigned Target::getMinIPUSyncDelay() const { return info->minIPUSyncDelay; }
unsigned Target::getMaxIPUSyncDelay() const { return info->minIPUSyncDelay; }
unsigned Target::getGlobalSyncCycles() const { return info->globalSyncCycles; }
unsigned Target::getDataPathWidth() const { return 64; }
unsigned Target::getFloatVectorWidth() const { return 2; }
unsigned Target::getHalfVectorWidth() const { return 4; }
unsigned Target::getQuarterVectorWidth() const { return 8; }
unsigned Target::getVectorWidth(const poplar::Type &type) const {
  const std::size_t size = core::typeSize(type);
  return size ? static_cast<unsigned>(8 / size) : 0;
}
std::size_t Target::getTypeSize(const Type &type) const { return core::typeSize(type); }
unsigned Target::getAtomicStoreGranularity() const { return 4; }
unsigned Target::getRptCountMax() const { return 4095; }
unsigned Target::getNumStrideBits() const { return 10; }
bool Target::supportsExchangeBusSharing() const { return true; }
unsigned Target::getTilesPerSharedExchangeBus() const { return 2; }
double Target::getTileClockFrequency() const { return info->clock; }
const OptionFlags &Target::getTargetOptions() const { return info->options; }

Target Target::createVirtualTarget(unsigned numIPUs, unsigned tilesPerIPU) const {
  TargetInfo i = *info;
  i.numIPUs = numIPUs;
  i.tilesPerIPU = tilesPerIPU;
  return Access::makeTarget(i);
}

Target Target::createCPUTarget(bool, unsigned numIPUs) {
  TargetInfo i;
  i.type = TargetType::CPU;
  i.system = i.arch = "cpu";
  i.numIPUs = numIPUs;
  i.tilesPerIPU = 1;
  i.numWorkerContexts = 1;
  i.bytesPerTile = ~0u;
  i.hostStreamBytes = ~std::uint64_t(0);
  return Access::makeTarget(i);
}

Target Target::createIPUTarget(StringRef systemType, const OptionFlags &opts) {
  return createIPUTarget(1, systemType, opts);
}
Target Target::createIPUTarget(unsigned numIPUs, StringRef systemType, const OptionFlags &opts) {
  return createIPUTarget(numIPUs, TargetInfo().tilesPerIPU, systemType, opts);
}
Target Target::createIPUTarget(unsigned numIPUs, unsigned tilesPerIPU, StringRef systemType,
                               const OptionFlags &opts) {
  const std::string system = systemType.str();
  TargetInfo i;
  i.type = TargetType::IPU;
  i.system = system;
  i.arch = system == "ipu21" ? "ipu21" : "ipu2";
  i.numIPUs = numIPUs;
  i.tilesPerIPU = tilesPerIPU;
  i.options = opts;
  if (numIPUs == 0 || tilesPerIPU == 0)
    throw errors::bad_target("createIPUTarget: IPUs and tiles must be at least 1, got " +
                             std::to_string(numIPUs) + " and " + std::to_string(tilesPerIPU));
  return Access::makeTarget(i);
}

Device::Device() = default;

static const core::DeviceInfo &checked(const std::shared_ptr<core::DeviceInfo> &info) {
  if (!info)
    throw errors::no_device("device must be valid, got a default-constructed or moved-from Device");
  return *info;
}

unsigned Device::getId() const { return checked(info).id; }
const Target &Device::getTarget() const { return checked(info).target; }
bool Device::attach() const {
  checked(info);
  return core::attachIPUs(*info);
}
bool Device::isAttached() const { return checked(info).attached; }
void Device::detach() const {
  checked(info);
  core::detachIPUs(*info);
}
void Device::getDriverVersion(unsigned &major, unsigned &minor, unsigned &point) const {
  major = minor = point = 0;
}
bool Device::supportsRemoteBuffers() const {
  return checked(info).target.getTargetType() != TargetType::CPU;
}
bool Device::hasGateway() const { return checked(info).listed; }
std::vector<unsigned> Device::getDriverIDs() const {
  const core::DeviceInfo &d = checked(info);
  std::vector<unsigned> r;
  for (unsigned i = 0; i != d.target.getNumIPUs(); ++i)
    r.push_back(d.firstIPU + i);
  return r;
}

Device Device::createVirtualDevice(unsigned tilesPerIPU) {
  core::DeviceInfo i = checked(info);
  if (tilesPerIPU == 0 || tilesPerIPU > i.target.getTilesPerIPU())
    throw errors::bad_target("createVirtualDevice: tilesPerIPU must be in [1, " +
                             std::to_string(i.target.getTilesPerIPU()) + "], got " +
                             std::to_string(tilesPerIPU));
  i.target = i.target.createVirtualTarget(i.target.getNumIPUs(), tilesPerIPU);
  return Access::makeDevice(i);
}

Device Device::createCPUDevice(unsigned numIPUs) {
  core::DeviceInfo i;
  i.target = Target::createCPUTarget(false, numIPUs);
  return Access::makeDevice(i);
}

Device Device::createSimulatorDevice(const Target &, const OptionFlags &) {
  core::notImplemented("Device::createSimulatorDevice");
}

IPUModel::IPUModel(char const *ipuVersion) : IPUVersion(ipuVersion) {
  if (IPUVersion != "ipu1" && IPUVersion != "ipu2" && IPUVersion != "ipu21")
    throw errors::bad_target("IPUModel: version must be ipu1, ipu2 or ipu21, got " + IPUVersion);
  if (IPUVersion == "ipu1") {
    tilesPerIPU = 1216;
    memoryBytesPerTile = 256 * 1024;
    tileClockFrequency = 1.6e9;
  }
}

Device IPUModel::createDevice(OptionFlags, bool, unsigned) const {
  if (numIPUs == 0 || tilesPerIPU == 0 || numWorkerContexts == 0 || memoryBytesPerTile == 0)
    throw errors::bad_target(
        "IPUModel: numIPUs, tilesPerIPU, numWorkerContexts and memoryBytesPerTile must be "
        "at least 1, got " +
        std::to_string(numIPUs) + ", " + std::to_string(tilesPerIPU) + ", " +
        std::to_string(numWorkerContexts) + ", " + std::to_string(memoryBytesPerTile));
  core::DeviceInfo d;
  TargetInfo i;
  i.system = i.arch = IPUVersion;
  i.numIPUs = numIPUs;
  i.tilesPerIPU = tilesPerIPU;
  i.numWorkerContexts = numWorkerContexts;
  i.bytesPerTile = memoryBytesPerTile;
  i.clock = tileClockFrequency;
  i.exchangeBytesPerCycle = exchangeBytesPerCycle;
  i.memcpyBytesPerCycle = memcpyBytesPerCycle;
  i.minIPUSyncDelay = minIPUSyncDelay;
  i.globalSyncCycles = globalSyncCycles;
  d.target = Access::makeTarget(i);
  return Access::makeDevice(d);
}

} // namespace poplar
