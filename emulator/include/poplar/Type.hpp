// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <type_traits>

#include "StringRef.hpp"

namespace poplar {

/// Element type of a tensor.
class Type {
public:
  constexpr Type() = default;
  Type(const Type &) = default;
  Type &operator=(const Type &) = default;

  StringRef toString() const;
  std::size_t hash() const { return id_; }
  bool isFloatingPoint() const;
  bool requiresMetadata() const;

  friend bool operator==(const Type &a, const Type &b) { return a.id_ == b.id_; }
  friend bool operator!=(const Type &a, const Type &b) { return a.id_ != b.id_; }
  friend bool operator<(const Type &a, const Type &b) { return a.id_ < b.id_; }

  constexpr explicit Type(unsigned char id, std::nullptr_t) : id_(id) {}

private:
  unsigned char id_ = 0;
};

std::ostream &operator<<(std::ostream &os, const Type &t);

extern const Type BOOL;
extern const Type CHAR;
extern const Type UNSIGNED_CHAR;
extern const Type SIGNED_CHAR;
extern const Type SHORT;
extern const Type UNSIGNED_SHORT;
extern const Type INT;
extern const Type UNSIGNED_INT;
extern const Type LONG;
extern const Type UNSIGNED_LONG;
extern const Type LONGLONG;
extern const Type UNSIGNED_LONGLONG;
extern const Type QUARTER;
extern const Type QUARTER_METADATA;
extern const Type HALF;
extern const Type FLOAT;

/// The device type that holds a host type: `equivalent_device_type<float>().value`.
template <class T> struct equivalent_device_type;
#define POPLAR_EQUIVALENT_DEVICE_TYPE(T, V)                                                        \
  template <> struct equivalent_device_type<T> {                                                   \
    const Type &value = V;                                                                         \
  }
POPLAR_EQUIVALENT_DEVICE_TYPE(bool, BOOL);
POPLAR_EQUIVALENT_DEVICE_TYPE(char, CHAR);
POPLAR_EQUIVALENT_DEVICE_TYPE(unsigned char, UNSIGNED_CHAR);
POPLAR_EQUIVALENT_DEVICE_TYPE(signed char, SIGNED_CHAR);
POPLAR_EQUIVALENT_DEVICE_TYPE(short, SHORT);
POPLAR_EQUIVALENT_DEVICE_TYPE(unsigned short, UNSIGNED_SHORT);
POPLAR_EQUIVALENT_DEVICE_TYPE(int, INT);
POPLAR_EQUIVALENT_DEVICE_TYPE(unsigned, UNSIGNED_INT);
POPLAR_EQUIVALENT_DEVICE_TYPE(long, LONG);
POPLAR_EQUIVALENT_DEVICE_TYPE(unsigned long, UNSIGNED_LONG);
POPLAR_EQUIVALENT_DEVICE_TYPE(long long, LONGLONG);
POPLAR_EQUIVALENT_DEVICE_TYPE(unsigned long long, UNSIGNED_LONGLONG);
POPLAR_EQUIVALENT_DEVICE_TYPE(float, FLOAT);
#undef POPLAR_EQUIVALENT_DEVICE_TYPE

} // namespace poplar

namespace std {
template <> struct hash<poplar::Type> {
  size_t operator()(const poplar::Type &type) const { return type.hash(); }
};
} // namespace std
