// SPDX-License-Identifier: Apache-2.0
// Element types, and conversion of host values to them.
#include <poplar/Type.hpp>
#include <poplar/TypeConversion.hpp>
#include <poplar/VectorLayout.hpp>

#include <poplar/HalfFloat.hpp>

#include <cmath>
#include <cstring>

#include "core.hpp"

namespace poplar {

const Type BOOL(1, nullptr);
const Type CHAR(2, nullptr);
const Type UNSIGNED_CHAR(3, nullptr);
const Type SIGNED_CHAR(4, nullptr);
const Type SHORT(5, nullptr);
const Type UNSIGNED_SHORT(6, nullptr);
const Type INT(7, nullptr);
const Type UNSIGNED_INT(8, nullptr);
const Type LONG(9, nullptr);
const Type UNSIGNED_LONG(10, nullptr);
const Type LONGLONG(11, nullptr);
const Type UNSIGNED_LONGLONG(12, nullptr);
const Type QUARTER(13, nullptr);
const Type QUARTER_METADATA(14, nullptr);
const Type HALF(15, nullptr);
const Type FLOAT(16, nullptr);

namespace {

struct TypeRow {
  const char *name;
  std::size_t size;
};
// LONG is 32-bit on the device. Index: Type::hash().
const TypeRow rows[] = {{"invalid", 0},
                        {"bool", 1},
                        {"char", 1},
                        {"unsigned char", 1},
                        {"signed char", 1},
                        {"short", 2},
                        {"unsigned short", 2},
                        {"int", 4},
                        {"unsigned int", 4},
                        {"long", 4},
                        {"unsigned long", 4},
                        {"long long", 8},
                        {"unsigned long long", 8},
                        {"quarter", 1},
                        {"quarter_metadata", 1},
                        {"half", 2},
                        {"float", 4}};
static_assert(sizeof rows / sizeof *rows == std::size_t(codelet_abi::Element::Float) + 1,
              "one row for each type");

} // namespace

StringRef Type::toString() const { return rows[id_].name; }
bool Type::isFloatingPoint() const { return *this == FLOAT || *this == HALF || *this == QUARTER; }
bool Type::requiresMetadata() const { return *this == QUARTER; }
std::ostream &operator<<(std::ostream &os, const Type &t) { return os << t.toString(); }

std::string toString(TargetType t) {
  return t == TargetType::IPU ? "IPU" : t == TargetType::IPU_MODEL ? "IPU_MODEL" : "CPU";
}

namespace layout {
std::string to_string(const Vector v) {
  switch (v) {
  case Vector::NotAVector:
    return "NotAVector";
  case Vector::Span:
    return "Span";
  case Vector::ShortSpan:
    return "ShortSpan";
  case Vector::OnePtr:
    return "OnePtr";
  case Vector::ScaledPtr32:
    return "ScaledPtr32";
  case Vector::ScaledPtr64:
    return "ScaledPtr64";
  case Vector::ScaledPtr128:
    return "ScaledPtr128";
  }
  core::throwUnknown("to_string: vector layout", v);
}
std::string to_string(const VectorList v) {
  switch (v) {
  case VectorList::NotAVector:
    return "NotAVector";
  case VectorList::OnePtr:
    return "OnePtr";
  case VectorList::ScaledPtr32:
    return "ScaledPtr32";
  case VectorList::ScaledPtr64:
    return "ScaledPtr64";
  case VectorList::ScaledPtr128:
    return "ScaledPtr128";
  case VectorList::DeltaN:
    return "DeltaN";
  case VectorList::DeltaNElements:
    return "DeltaNElements";
  }
  core::throwUnknown("to_string: vector list layout", v);
}
} // namespace layout

void copyDeviceHalfToFloat(const Target &, const void *src, float *dst, std::size_t n) {
  const auto *s = static_cast<const std::uint16_t *>(src);
  for (std::size_t i = 0; i < n; ++i)
    dst[i] = half_bits::toFloat(s[i]);
}

void copyFloatToDeviceHalf(const Target &, const float *src, void *dst, std::size_t n) {
  auto *d = static_cast<std::uint16_t *>(dst);
  for (std::size_t i = 0; i < n; ++i)
    d[i] = half_bits::fromFloat(src[i]);
}

void copyDeviceHalfToDouble(const Target &, const void *src, double *dst, std::size_t n) {
  const auto *s = static_cast<const std::uint16_t *>(src);
  for (std::size_t i = 0; i < n; ++i)
    dst[i] = half_bits::toFloat(s[i]);
}

namespace {
// Rounds to odd: then rounding the float to half gives what rounding the double to half would.
float roundToOdd(double d) {
  float f = static_cast<float>(d);
  if (static_cast<double>(f) == d || std::isnan(d) || std::isinf(f))
    return f;
  std::uint32_t bits = half_bits::asBits(f);
  if (bits & 1u)
    return f;
  const bool towardsZero = std::fabs(static_cast<double>(f)) < std::fabs(d);
  return half_bits::asFloat(towardsZero ? bits | 1u : bits - 1u);
}
} // namespace

void copyDoubleToDeviceHalf(const Target &, const double *src, void *dst, std::size_t n) {
  auto *d = static_cast<std::uint16_t *>(dst);
  for (std::size_t i = 0; i < n; ++i)
    d[i] = half_bits::fromFloat(roundToOdd(src[i]));
}

void convertToDeviceType(const Type &type, ArrayRef<float> src, void *dst) {
  if (type == HALF)
    copyFloatToDeviceHalf(Target(), src.data(), dst, src.size());
  else if (type == FLOAT)
    std::memcpy(dst, src.data(), src.size() * sizeof(float));
  else
    throw errors::type_mismatch("convertToDeviceType: type must be half or float, got " +
                                type.toString().str());
}

void convertToDeviceType(const Type &type, ArrayRef<double> src, void *dst) {
  if (type == HALF) {
    copyDoubleToDeviceHalf(Target(), src.data(), dst, src.size());
  } else if (type == FLOAT) {
    for (std::size_t i = 0; i < src.size(); ++i)
      static_cast<float *>(dst)[i] = static_cast<float>(src[i]);
  } else {
    throw errors::type_mismatch("convertToDeviceType: type must be half or float, got " +
                                type.toString().str());
  }
}

void convertFromDeviceType(const Type &type, const void *src, float *dst, std::size_t n) {
  if (type == HALF)
    copyDeviceHalfToFloat(Target(), src, dst, n);
  else if (type == FLOAT)
    std::memcpy(dst, src, n * sizeof(float));
  else
    throw errors::type_mismatch("convertFromDeviceType: type must be half or float, got " +
                                type.toString().str());
}

namespace core {

std::size_t typeSize(const Type &t) { return rows[t.hash()].size; }

namespace {

template <class T> T load(const void *p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class T> void store(void *p, T v) { std::memcpy(p, &v, sizeof v); }

// A host integer of any width: value and whether it was negative.
struct Integer {
  bool negative;
  std::uint64_t magnitude; // two's complement bits
};

Integer loadInteger(const void *src, const TypeTraits &t) {
  std::int64_t s = 0;
  switch (t.size) {
  case 1:
    s = t.isSigned ? load<std::int8_t>(src) : load<std::uint8_t>(src);
    break;
  case 2:
    s = t.isSigned ? load<std::int16_t>(src) : load<std::uint16_t>(src);
    break;
  case 4:
    s = t.isSigned ? load<std::int32_t>(src) : static_cast<std::int64_t>(load<std::uint32_t>(src));
    break;
  default:
    return {t.isSigned && load<std::int64_t>(src) < 0, load<std::uint64_t>(src)};
  }
  return {s < 0, static_cast<std::uint64_t>(s)};
}

} // namespace

void convertValue(const void *src, const TypeTraits &traits, const Type &type, void *dst,
                  const std::string &what) {
  auto refuse = [&](const std::string &value) {
    throw errors::value_does_not_fit(what + ": the value must fit " + type.toString().str() +
                                     ", got " + value);
  };
  if (type == FLOAT || type == HALF) {
    double d = 0;
    if (traits.isFloat) {
      d = traits.size == sizeof(float) ? load<float>(src) : load<double>(src);
    } else {
      const Integer i = loadInteger(src, traits);
      d = i.negative ? static_cast<double>(static_cast<std::int64_t>(i.magnitude))
                     : static_cast<double>(i.magnitude);
    }
    if (type == FLOAT)
      store(dst, static_cast<float>(d));
    else
      store(dst, half_bits::fromFloat(roundToOdd(d)));
    return;
  }
  const std::size_t size = typeSize(type);
  if (size == 0 || type == QUARTER || type == QUARTER_METADATA)
    throw errors::type_mismatch(what + ": values of type " + type.toString().str() +
                                " are not supported");
  Integer i{};
  if (traits.isFloat) {
    const double d = traits.size == sizeof(float) ? load<float>(src) : load<double>(src);
    if (!(std::fabs(d) < 9.2e18) || d != std::trunc(d))
      refuse(std::to_string(d));
    i = {d < 0, static_cast<std::uint64_t>(static_cast<std::int64_t>(d))};
  } else {
    i = loadInteger(src, traits);
  }
  const bool isSigned = type == CHAR || type == SIGNED_CHAR || type == SHORT || type == INT ||
                        type == LONG || type == LONGLONG;
  const unsigned bits = type == BOOL ? 1 : static_cast<unsigned>(size * 8);
  const std::string text = i.negative ? std::to_string(static_cast<std::int64_t>(i.magnitude))
                                      : std::to_string(i.magnitude);
  if (isSigned) {
    const std::int64_t hi = static_cast<std::int64_t>((std::uint64_t(1) << (bits - 1)) - 1),
                       lo = -hi - 1;
    const bool fits = i.negative ? static_cast<std::int64_t>(i.magnitude) >= lo
                                 : i.magnitude <= static_cast<std::uint64_t>(hi);
    if (!fits)
      refuse(text);
  } else {
    const std::uint64_t hi = bits == 64 ? ~std::uint64_t(0) : (std::uint64_t(1) << bits) - 1;
    if (i.negative || i.magnitude > hi)
      refuse(text);
  }
  std::memcpy(dst, &i.magnitude, size); // little endian: the low bytes
}

double valueAsDouble(const void *src, const Type &type) {
  if (type == FLOAT)
    return load<float>(src);
  if (type == HALF)
    return half_bits::toFloat(load<std::uint16_t>(src));
  switch (typeSize(type)) {
  case 1:
    return type == UNSIGNED_CHAR || type == BOOL ? load<std::uint8_t>(src) : load<std::int8_t>(src);
  case 2:
    return type == UNSIGNED_SHORT ? load<std::uint16_t>(src) : load<std::int16_t>(src);
  case 4:
    return type == INT || type == LONG ? static_cast<double>(load<std::int32_t>(src))
                                       : static_cast<double>(load<std::uint32_t>(src));
  default:
    return type == LONGLONG ? static_cast<double>(load<std::int64_t>(src))
                            : static_cast<double>(load<std::uint64_t>(src));
  }
}

} // namespace core
} // namespace poplar
