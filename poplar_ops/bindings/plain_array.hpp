// SPDX-License-Identifier: Apache-2.0
//
// Whether an array can be read as it is.
#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <cstring>

namespace sparq {

// fp16 in this machine's byte order.
inline pybind11::dtype half() { return pybind11::dtype(23); } // NPY_HALF
inline bool isHalf(const pybind11::array &array) {
  const pybind11::dtype type = array.dtype();
  return type.num() == 23 && type.byteorder() == '=';
}

// The number `row` of an array's rows, which are along its last axis.
inline const char *rowOf(const pybind11::array &array, std::size_t row) {
  const char *at = static_cast<const char *>(array.data());
  for (pybind11::ssize_t a = array.ndim() - 2; a >= 0; --a) {
    const auto n = static_cast<std::size_t>(array.shape(a));
    at += static_cast<std::ptrdiff_t>(row % n) * array.strides(a);
    row /= n;
  }
  return at;
}

// An ndarray, no subclass, of fp16 in this machine's byte order, with this many dimensions, none of
// them empty, and the numbers of each row one after another.
inline bool isPlain(const pybind11::object &object, pybind11::ssize_t nDims) {
  if (Py_TYPE(object.ptr()) != pybind11::detail::npy_api::get().PyArray_Type_)
    return false;
  const auto array = pybind11::reinterpret_borrow<pybind11::array>(object);
  return isHalf(array) && array.ndim() == nDims && array.size() != 0 &&
         array.strides(nDims - 1) == sizeof(std::uint16_t);
}

// Whether a plain array has neither NaN nor infinity.
inline bool isFinite(const pybind11::array &array) {
  const auto width = static_cast<std::size_t>(array.shape(array.ndim() - 1));
  const std::size_t nRows = static_cast<std::size_t>(array.size()) / width;
  for (std::size_t row = 0; row != nRows; ++row) {
    const char *const at = rowOf(array, row);
    std::uint16_t most = 0; // without a branch: this is vectorised
    for (std::size_t c = 0; c != width; ++c) {
      std::uint16_t bits;
      std::memcpy(&bits, at + c * sizeof(bits), sizeof(bits));
      const auto exponent = static_cast<std::uint16_t>(bits & 0x7c00u);
      most = exponent > most ? exponent : most;
    }
    if (most == 0x7c00u)
      return false;
  }
  return true;
}

} // namespace sparq
