// SPDX-License-Identifier: Apache-2.0
#pragma once

// `half`: IEEE binary16, as an IPU converts it by default: round to nearest even, overflow
// saturates. In codelets made with popc --floating-point-events the overflow is an event, and gives
// NaN where the tile says so.

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace poplar {
namespace half_bits {

// Conversions are constant expressions where the compiler can copy bits in one.
#if __cplusplus >= 201402L && defined(__has_builtin)
#if __has_builtin(__builtin_bit_cast)
#define SPARQ_HALF_CONSTEXPR constexpr
#endif
#endif
#ifdef SPARQ_HALF_CONSTEXPR
constexpr std::uint32_t asBits(float f) { return __builtin_bit_cast(std::uint32_t, f); }
constexpr float asFloat(std::uint32_t u) { return __builtin_bit_cast(float, u); }
#else
#define SPARQ_HALF_CONSTEXPR inline
inline std::uint32_t asBits(float f) {
  std::uint32_t u;
  std::memcpy(&u, &f, 4);
  return u;
}
inline float asFloat(std::uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
#endif

// A choice by masks: `?:` makes GCC move the float operations into branches, which it can not
// vectorise.
SPARQ_HALF_CONSTEXPR std::uint32_t choose(bool condition, std::uint32_t yes, std::uint32_t no) {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

/// Exact, denormals included; NaNs keep their payload.
/// It has no branches, so that loops over it vectorise.
SPARQ_HALF_CONSTEXPR float toFloat(std::uint16_t h) {
  const std::uint32_t sign = (h & 0x8000u) << 16;
  const std::uint32_t shifted = (h & 0x7fffu) << 13;
  const std::uint32_t exponent = shifted & 0x0f800000u;
  // Exponent 31 (inf, NaN) becomes 255, every other moves up by 127 - 15.
  const std::uint32_t normal = shifted + choose(exponent == 0x0f800000u, 224u << 23, 112u << 23);
  // A half denormal is m * 2^-24: place m below the mantissa of 2^-14 and subtract that 2^-14.
  const std::uint32_t denormal = asBits(asFloat(shifted + (113u << 23)) - asFloat(113u << 23));
  return asFloat(sign | choose(exponent == 0, denormal, normal));
}

#ifdef SPARQ_FLOATING_POINT_EVENTS
// codelet_abi.hpp
extern "C" __attribute__((visibility("default")))
std::uint16_t (*poplar_codelet_half_overflow)(std::uint16_t sign);
#endif

/// Rounds to nearest even. Above 65504 (infinity too) gives 65504; NaN gives the quiet NaN 0x7e00.
SPARQ_HALF_CONSTEXPR std::uint16_t fromFloat(float f) {
  const std::uint32_t bits = asBits(f);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
#ifdef SPARQ_FLOATING_POINT_EVENTS
  if (magnitude >= 0x477ff000u && magnitude < 0x7f800000u) // what rounds above 65504; not infinity
    return poplar_codelet_half_overflow(static_cast<std::uint16_t>(sign));
#endif
  const std::uint32_t clamped =
      choose(static_cast<std::int32_t>(magnitude) < 0x477fe000, magnitude, 0x477fe000u);
  const std::uint32_t normal = (clamped - (112u << 23) + 0xfffu + ((clamped >> 13) & 1u)) >> 13;
  // Adding 0.5 puts the unit of a half denormal (2^-24) at the last bit of the sum: the host's
  // addition does the rounding.
  const std::uint32_t denormal = asBits(asFloat(clamped) + 0.5f) - 0x3f000000u;
  const std::uint32_t finite =
      choose(static_cast<std::int32_t>(clamped) < (113 << 23), denormal, normal);
  const bool isNaN = static_cast<std::int32_t>(magnitude) > 0x7f800000;
  return static_cast<std::uint16_t>(sign | choose(isNaN, 0x7e00u, finite));
}

} // namespace half_bits
} // namespace poplar

/// Storage type: arithmetic converts to float, as `__fp16` does on the IPU.
class half {
public:
  half() = default;
  SPARQ_HALF_CONSTEXPR half(float f) : bits_(poplar::half_bits::fromFloat(f)) {}
  template <class T, typename = typename std::enable_if<std::is_arithmetic<T>::value>::type>
  SPARQ_HALF_CONSTEXPR half(T v) : half(static_cast<float>(v)) {}
  SPARQ_HALF_CONSTEXPR operator float() const { return poplar::half_bits::toFloat(bits_); }

  /// Of an edge that is a number. No constructor: a function that takes float or half could then
  /// not choose.
  template <class Edge>
  typename std::enable_if<std::is_class<Edge>::value && std::is_convertible<Edge, float>::value,
                          half &>::type
  operator=(const Edge &edge) {
    return *this = half(static_cast<float>(edge));
  }

  half &operator+=(float f) { return *this = half(static_cast<float>(*this) + f); }
  half &operator-=(float f) { return *this = half(static_cast<float>(*this) - f); }
  half &operator*=(float f) { return *this = half(static_cast<float>(*this) * f); }
  half &operator/=(float f) { return *this = half(static_cast<float>(*this) / f); }

  std::uint16_t bits() const { return bits_; }
  static half fromBits(std::uint16_t b) {
    half h;
    h.bits_ = b;
    return h;
  }

private:
  std::uint16_t bits_;
};

#undef SPARQ_HALF_CONSTEXPR

static_assert(sizeof(half) == 2 && std::is_trivially_copyable<half>::value,
              "half must be 16 plain bits");

namespace std {
template <> struct numeric_limits<half> {
  static constexpr bool is_specialized = true;
  static constexpr bool is_signed = true;
  static constexpr bool is_integer = false;
  static constexpr bool is_exact = false;
  static constexpr bool has_infinity = true;
  static constexpr bool has_quiet_NaN = true;
  static constexpr int digits = 11;
  static half min() { return half::fromBits(0x0400); }
  static half max() { return half::fromBits(0x7bff); }
  static half lowest() { return half::fromBits(0xfbff); }
  static half epsilon() { return half::fromBits(0x1400); }
  static half denorm_min() { return half::fromBits(0x0001); }
  static half infinity() { return half::fromBits(0x7c00); }
  static half quiet_NaN() { return half::fromBits(0x7e00); }
};
} // namespace std
