// SPDX-License-Identifier: Apache-2.0
#pragma once

// `quarter`: the IPU's FP8. How its bits are shared out, and a power of two that scales it, are
// metadata of a whole tensor.
//
// F143: 4 bits of exponent with bias 8, 3 of mantissa: up to 240, steps of 2^-10 at zero.
// F152: 5 bits of exponent with bias 16, 2 of mantissa: up to 57344, steps of 2^-17 at zero.
// There is one zero and one NaN, 0x80, where a negative zero would be, and no infinity.
// Metadata are a byte: bit 7 says F143, bits 0 to 5 are the scale in two's complement.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "HalfFloat.hpp"
#include "Quarter.hpp"

/// Storage type without arithmetic: a value's meaning depends on its metadata.
class quarter {
public:
  quarter() = default;
  std::uint8_t bits() const { return bits_; }
  static quarter fromBits(std::uint8_t b) {
    quarter q;
    q.bits_ = b;
    return q;
  }

private:
  std::uint8_t bits_;
};

static_assert(sizeof(quarter) == 1 && std::is_trivially_copyable<quarter>::value,
              "quarter must be 8 plain bits");

namespace poplar {

/// Metadata as a tensor of QUARTER_METADATA holds them.
using MetadataType = std::uint8_t;

/// Metadata taken apart, for the functions below.
struct quarter_metadata {
  QuarterMetadata::Format format = QuarterMetadata::Format::F143;
  int scale = 0;
};

inline quarter_metadata unpackMetadata(MetadataType m) {
  quarter_metadata r;
  r.format = m & 0x80 ? QuarterMetadata::Format::F143 : QuarterMetadata::Format::F152;
  r.scale = (m & 0x3f) - ((m & 0x20) << 1);
  return r;
}
inline quarter_metadata unpackMetadata(const MetadataType *m) { return unpackMetadata(*m); }

namespace quarter_bits {

struct Layout {
  int mantissa;
  int bias;
};
inline Layout layoutOf(QuarterMetadata::Format f) {
  return f == QuarterMetadata::Format::F143 ? Layout{3, 8} : Layout{2, 16};
}

/// The value times 2^scale. Exact.
inline double toDouble(std::uint8_t q, quarter_metadata m) {
  if (q == 0x80)
    return NAN;
  const Layout layout = layoutOf(m.format);
  const int exponent = (q & 0x7f) >> layout.mantissa, unit = 1 << layout.mantissa;
  const int mantissa = (q & (unit - 1)) + (exponent ? unit : 0);
  const double x = std::ldexp(static_cast<double>(mantissa),
                              (exponent ? exponent : 1) - layout.bias - layout.mantissa + m.scale);
  return q & 0x80 ? -x : x;
}

/// The value over 2^scale, rounded to nearest even. NaN and infinities give NaN; what rounds to
/// more than the greatest value gives that value, or NaN if asked for.
inline std::uint8_t fromDouble(double x, quarter_metadata m, bool nanOnOverflow = false) {
  if (!std::isfinite(x))
    return 0x80;
  const Layout layout = layoutOf(m.format);
  double magnitude = std::ldexp(std::fabs(x), -m.scale);
  if (magnitude == 0)
    return 0;
  int exponent = std::ilogb(magnitude);
  if (exponent < 1 - layout.bias)
    exponent = 1 - layout.bias;
  if (exponent > 1024 - layout.bias) // far too large: keeps the shift below small
    return nanOnOverflow ? 0x80 : static_cast<std::uint8_t>(x < 0 ? 0xff : 0x7f);
  // In units of the last place: at most 2^(mantissa + 1), and then as many codes above the
  // exponent's first.
  magnitude = std::ldexp(magnitude, layout.mantissa - exponent);
  const double whole = std::floor(magnitude), rest = magnitude - whole;
  long code = static_cast<long>(whole);
  if (rest > 0.5 || (rest == 0.5 && code % 2 == 1))
    ++code;
  code += static_cast<long>(exponent + layout.bias - 1) << layout.mantissa;
  if (code > 0x7f) {
    if (nanOnOverflow)
      return 0x80;
    code = 0x7f;
  }
  return static_cast<std::uint8_t>(code == 0 ? 0 : x < 0 ? code | 0x80 : code);
}

} // namespace quarter_bits

/// As an IPU casts by default: to nearest even, overflow saturates.
inline quarter toQuarter(float x, quarter_metadata m) {
  return quarter::fromBits(quarter_bits::fromDouble(static_cast<double>(x), m));
}
inline quarter toQuarter(half x, quarter_metadata m) { return toQuarter(static_cast<float>(x), m); }
inline float toFloat(quarter q, quarter_metadata m) {
  return static_cast<float>(quarter_bits::toDouble(q.bits(), m));
}
inline half toHalf(quarter q, quarter_metadata m) { return half(toFloat(q, m)); }

} // namespace poplar

using poplar::MetadataType;
using poplar::quarter_metadata;
