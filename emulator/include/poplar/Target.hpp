// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "OptionFlags.hpp"
#include "StringRef.hpp"
#include "TargetType.hpp"
#include "Type.hpp"

namespace poplar {

/// How the links between IPUs are laid out.
enum class IpuLinkConfiguration { Default, SlidingWindow, BarleyTwist };
enum class IpuLinkTopology { Mesh, Torus, Line };

namespace core {
struct TargetInfo;
struct Access;
} // namespace core

/// The machine a graph is built for.
class Target {
public:
  Target();
  Target(const Target &) = default;
  Target &operator=(const Target &) = default;

  std::size_t hash() const;
  TargetType getTargetType() const;
  StringRef getTargetSystemString() const;
  StringRef getTargetArchString() const;
  unsigned getNumIPUs() const;
  unsigned getTilesPerIPU() const;
  unsigned getNumTiles() const;
  unsigned getNumWorkerContexts() const;
  unsigned getBytesPerTile() const;
  std::uint64_t getMemoryBytes() const;
  unsigned getExchangeBytesPerCycle() const;
  unsigned getMemcpyBytesPerCycle() const;
  unsigned getMinIPUSyncDelay() const;
  unsigned getMaxIPUSyncDelay() const;
  unsigned getGlobalSyncCycles() const;
  unsigned getDataPathWidth() const;
  unsigned getFloatVectorWidth() const;
  unsigned getHalfVectorWidth() const;
  unsigned getQuarterVectorWidth() const;
  unsigned getVectorWidth(const poplar::Type &type) const;
  std::size_t getTypeSize(const Type &type) const;
  unsigned getAtomicStoreGranularity() const;
  unsigned getRptCountMax() const;
  unsigned getNumStrideBits() const;
  bool supportsExchangeBusSharing() const;
  unsigned getTilesPerSharedExchangeBus() const;
  double getTileClockFrequency() const;
  /// What createIPUTarget was given; changes nothing here.
  const OptionFlags &getTargetOptions() const;

  // target_properties.cpp: of the second generation, whatever the target.
  std::vector<unsigned> getMemoryElementOffsets() const;
  unsigned getInterleavedMemoryElementIndex() const;
  unsigned getFp8ConvUnitMaxPipelineDepth() const;
  unsigned getFp16ConvUnitMaxPipelineDepth() const;
  unsigned getFp32ConvUnitMaxPipelineDepth() const;
  unsigned getFp8ConvUnitInputLoadElemsPerCycle() const;
  unsigned getFp16ConvUnitInputLoadElemsPerCycle() const;
  unsigned getFp32ConvUnitInputLoadElemsPerCycle() const;
  unsigned getFp8InFp16OutConvUnitsPerTile() const;
  unsigned getFp16InFp16OutConvUnitsPerTile() const;
  unsigned getFp16InFp32OutConvUnitsPerTile() const;
  unsigned getFp32InFp32OutConvUnitsPerTile() const;
  unsigned getConvUnitCoeffLoadBytesPerCycle() const;
  unsigned getWeightsPerConvUnit(const Type &type) const;
  unsigned getConvUnitInputLoadElemsPerCycle(const Type &type) const;
  unsigned getConvUnitMaxPipelineDepth(const Type &type) const;
  unsigned getNumConvUnits(const Type &inputType, const Type &partialType) const;
  /// The largest and the lowest number of a type.
  template <typename T> T getTypeLimitsMaxAs(const Type &type) const {
    return static_cast<T>(getTypeLimitsMax(type));
  }
  template <typename T> T getTypeLimitsLowestAs(const Type &type) const {
    return static_cast<T>(getTypeLimitsLowest(type));
  }
  IpuLinkConfiguration getIpuLinkConfiguration() const;
  IpuLinkTopology getIpuLinkTopology() const;
  unsigned getIpuLinkDomainSize() const;
  unsigned getInstanceSize() const;
  bool getGatewayMode() const;
  /// A tile's control register with these switched on.
  unsigned makeFpIctlValue(bool inv, bool div0, bool oflo, bool esr, bool nanoo) const;
  // Not implemented in the emulator: these throw.
  unsigned getNumTilesPerXBContext() const;
  unsigned getNumContextsPerXB() const;
  unsigned getTileHostExchangeXB(unsigned tile) const;
  unsigned getTileHostExchangeContext(unsigned tile) const;
  unsigned getTileHostExchangeContextPosition(unsigned tile) const;
  unsigned getFpIctlRegIndex() const;
  unsigned getDbgDataRegIndex() const;

  Target createVirtualTarget(unsigned numIPUs, unsigned tilesPerIPU) const;

  static Target createCPUTarget(bool accurateHalf = false, unsigned numIPUs = 1);
  static Target createIPUTarget(StringRef systemType, const OptionFlags &opts = {});
  static Target createIPUTarget(unsigned numIPUs, StringRef systemType,
                                const OptionFlags &opts = {});
  static Target createIPUTarget(unsigned numIPUs, unsigned tilesPerIPU, StringRef systemType,
                                const OptionFlags &opts = {});

  friend bool operator==(const Target &a, const Target &b) { return a.hash() == b.hash(); }
  friend bool operator!=(const Target &a, const Target &b) { return !(a == b); }
  /// Some order, for keys of maps.
  friend bool operator<(const Target &a, const Target &b) { return a.hash() < b.hash(); }

private:
  friend struct core::Access;
  long double getTypeLimitsMax(const Type &type) const;
  long double getTypeLimitsLowest(const Type &type) const;
  std::shared_ptr<const core::TargetInfo> info;
};

/// Conversions between host numbers and the 16-bit words of device halves.
void copyDeviceHalfToFloat(const Target &target, const void *src, float *dst,
                           std::size_t numElements);
void copyFloatToDeviceHalf(const Target &target, const float *src, void *dst,
                           std::size_t numElements);
void copyDeviceHalfToDouble(const Target &target, const void *src, double *dst,
                            std::size_t numElements);
void copyDoubleToDeviceHalf(const Target &target, const double *src, void *dst,
                            std::size_t numElements);

} // namespace poplar
