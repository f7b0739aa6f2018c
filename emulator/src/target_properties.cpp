// SPDX-License-Identifier: Apache-2.0
// Properties of targets that the emulator itself has no use for, but that others plan with. They
// are those of the second generation: 64 products of halves a cycle and tile, as its published
// speeds have it. Units of convolution are as many as PopLibs has codelets for: it has none that
// takes 16 for halves to floats.
#include <poplar/CodeletFileType.hpp>
#include <poplar/Target.hpp>
#include <poplar/exceptions.hpp>

#include <cstring>
#include <limits>

#include "core.hpp"

namespace poplar {

// Tile memory begins at 0x4c000; its interleaved part at 0x80000. How it is cut into elements is
// not published: 32 KiB each are taken.
std::vector<unsigned> Target::getMemoryElementOffsets() const {
  std::vector<unsigned> r;
  for (unsigned at = 0x4c000; at < 0x4c000 + getBytesPerTile() && at < 0x80000;
       at += at % 0x8000 ? 0x4000 : 0x8000)
    r.push_back(at);
  for (unsigned at = 0x80000; at < 0x4c000 + std::min(getBytesPerTile(), 0x9c000u); at += 0x8000)
    r.push_back(at);
  return r;
}
unsigned Target::getInterleavedMemoryElementIndex() const {
  const std::vector<unsigned> all = getMemoryElementOffsets();
  return static_cast<unsigned>(std::lower_bound(all.begin(), all.end(), 0x80000u) - all.begin());
}

unsigned Target::getFp8ConvUnitMaxPipelineDepth() const { return 4; }
unsigned Target::getFp16ConvUnitMaxPipelineDepth() const { return 4; }
unsigned Target::getFp32ConvUnitMaxPipelineDepth() const { return 4; }
unsigned Target::getFp8ConvUnitInputLoadElemsPerCycle() const { return 8; }
unsigned Target::getFp16ConvUnitInputLoadElemsPerCycle() const { return 4; }
unsigned Target::getFp32ConvUnitInputLoadElemsPerCycle() const { return 2; }
unsigned Target::getFp8InFp16OutConvUnitsPerTile() const { return 16; }
unsigned Target::getFp16InFp16OutConvUnitsPerTile() const { return 16; }
unsigned Target::getFp16InFp32OutConvUnitsPerTile() const { return 8; }
unsigned Target::getFp32InFp32OutConvUnitsPerTile() const { return 16; }
unsigned Target::getConvUnitCoeffLoadBytesPerCycle() const { return 32; }
unsigned Target::getConvUnitInputLoadElemsPerCycle(const Type &type) const {
  return type == FLOAT  ? getFp32ConvUnitInputLoadElemsPerCycle()
         : type == HALF ? getFp16ConvUnitInputLoadElemsPerCycle()
                        : getFp8ConvUnitInputLoadElemsPerCycle();
}
unsigned Target::getConvUnitMaxPipelineDepth(const Type &type) const {
  return type == FLOAT ? getFp32ConvUnitMaxPipelineDepth() : getFp16ConvUnitMaxPipelineDepth();
}
unsigned Target::getWeightsPerConvUnit(const Type &type) const {
  return getConvUnitInputLoadElemsPerCycle(type) * getConvUnitMaxPipelineDepth(type);
}
unsigned Target::getNumConvUnits(const Type &inputType, const Type &partialType) const {
  if (inputType == FLOAT)
    return partialType == FLOAT ? getFp32InFp32OutConvUnitsPerTile() : 0;
  if (inputType == HALF)
    return partialType == FLOAT ? getFp16InFp32OutConvUnitsPerTile()
                                : getFp16InFp16OutConvUnitsPerTile();
  return partialType == HALF ? getFp8InFp16OutConvUnitsPerTile() : 0;
}

namespace {
struct Limits {
  long double lowest, most;
};
template <class T> Limits limitsOf() {
  return {static_cast<long double>(std::numeric_limits<T>::lowest()),
          static_cast<long double>(std::numeric_limits<T>::max())};
}
Limits limits(const Type &type) {
  if (type == HALF)
    return {-65504.0L, 65504.0L};
  if (type == FLOAT)
    return limitsOf<float>();
  if (type == BOOL)
    return {0, 1};
  if (type == CHAR || type == SIGNED_CHAR)
    return limitsOf<signed char>();
  if (type == UNSIGNED_CHAR)
    return limitsOf<unsigned char>();
  if (type == SHORT)
    return limitsOf<short>();
  if (type == UNSIGNED_SHORT)
    return limitsOf<unsigned short>();
  if (type == INT || type == LONG)
    return limitsOf<int>();
  if (type == UNSIGNED_INT || type == UNSIGNED_LONG)
    return limitsOf<unsigned>();
  if (type == LONGLONG)
    return limitsOf<long long>();
  if (type == UNSIGNED_LONGLONG)
    return limitsOf<unsigned long long>();
  throw errors::type_mismatch("getTypeLimits: the type must be one of numbers here, got " +
                              type.toString().str());
}
} // namespace

long double Target::getTypeLimitsMax(const Type &type) const { return limits(type).most; }
long double Target::getTypeLimitsLowest(const Type &type) const { return limits(type).lowest; }

IpuLinkConfiguration Target::getIpuLinkConfiguration() const {
  return IpuLinkConfiguration::Default;
}
IpuLinkTopology Target::getIpuLinkTopology() const { return IpuLinkTopology::Mesh; }
unsigned Target::getIpuLinkDomainSize() const { return getNumIPUs(); }
unsigned Target::getInstanceSize() const { return getNumIPUs(); }
bool Target::getGatewayMode() const { return false; }

static const struct {
  CodeletFileType type;
  const char *extension;
} fileTypes[] = {{CodeletFileType::PreprocessedAsmSource, ".S"},
                 {CodeletFileType::AsmSource, ".s"},
                 {CodeletFileType::CSource, ".c"},
                 {CodeletFileType::CppSource, ".cpp"},
                 {CodeletFileType::IrSource, ".ll"},
                 {CodeletFileType::Object, ".gp"}};

CodeletFileType getCodeletFileType(const char *path) {
  const char *dot = std::strrchr(path, '.');
  for (const auto &t : fileTypes)
    if (dot && std::strcmp(dot, t.extension) == 0)
      return t.type;
  throw errors::bad_argument(
      std::string("getCodeletFileType: the name must end as a codelet file's, got '") + path + "'");
}
std::string getExtensionFromFileType(CodeletFileType type) {
  for (const auto &t : fileTypes)
    if (t.type == type)
      return t.extension;
  throw errors::bad_argument("getExtensionFromFileType: the type must be that of a file, got Auto");
}

} // namespace poplar
