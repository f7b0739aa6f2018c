// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>

namespace poplar {

/// Size, alignment and nature of a host type whose values become device values.
struct TypeTraits {
  std::size_t size = 0;
  std::size_t align = 0;
  bool isSigned = false;
  bool isFloat = false;
  bool isBool = false;
  bool isIntegral = false; // bool among them

  bool isSimpleType() const { return size != 0; }

  template <class T> static constexpr bool isSimpleType() { return std::is_arithmetic<T>::value; }
  template <class T> static TypeTraits make() {
    TypeTraits t;
    if (isSimpleType<T>()) {
      t.size = sizeof(T);
      t.align = alignof(T);
      t.isSigned = std::is_signed<T>::value;
      t.isFloat = std::is_floating_point<T>::value;
      t.isBool = std::is_same<T, bool>::value;
      t.isIntegral = std::is_integral<T>::value;
    }
    return t;
  }
  template <class T> static constexpr bool requiresMetadata() { return false; }
};

} // namespace poplar
