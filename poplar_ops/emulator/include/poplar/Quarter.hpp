// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace poplar {

/// How the bits of an FP8 number are shared out, and the power of two that scales it. The emulator has no FP8.
class QuarterMetadata {
public:
  enum class Format { F143, F152 };
  QuarterMetadata(Format format, int scale) : format_(format), scale_(scale) {}
  Format getFormat() const { return format_; }
  int getScale() const { return scale_; }
  /// Not implemented in the emulator: throws.
  std::uint8_t getBinary() const;

private:
  Format format_;
  int scale_;
};

} // namespace poplar
