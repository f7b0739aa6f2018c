// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <iosfwd>

namespace poplar {

/// How the bits of an FP8 number are shared out, and the power of two that scales it: see
/// QuarterFloat.hpp.
class QuarterMetadata {
public:
  enum class Format { F143, F152 };
  QuarterMetadata() = default;
  /// `scale` is from -32 to 31; throws tensor_metadata_error.
  QuarterMetadata(Format format, int scale);
  Format getFormat() const { return format_; }
  int getScale() const { return scale_; }
  /// The byte that a tensor of QUARTER_METADATA holds.
  std::uint8_t getBinary() const;

  friend bool operator==(const QuarterMetadata &a, const QuarterMetadata &b) {
    return a.format_ == b.format_ && a.scale_ == b.scale_;
  }
  friend bool operator!=(const QuarterMetadata &a, const QuarterMetadata &b) { return !(a == b); }

private:
  Format format_ = Format::F143;
  int scale_ = 0;
};

/// As `{F143, -2}`: format and scale.
std::ostream &operator<<(std::ostream &os, const QuarterMetadata &metadata);

} // namespace poplar
