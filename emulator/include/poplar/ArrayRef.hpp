// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <initializer_list>
#include <type_traits>
#include <vector>

namespace poplar {

/// A view of a contiguous array that the callee does not keep.
template <class T> class ArrayRef {
public:
  using value_type = T;
  using const_iterator = const T *;

  ArrayRef() = default;
  ArrayRef(const T *p, std::size_t n) : data_(p), size_(n) {}
  ArrayRef(const std::vector<typename std::remove_const<T>::type> &v)
      : data_(v.data()), size_(v.size()) {}
  template <std::size_t N>
  ArrayRef(const std::array<typename std::remove_const<T>::type, N> &a)
      : data_(a.data()), size_(N) {}
  template <std::size_t N> ArrayRef(const T (&a)[N]) : data_(a), size_(N) {}
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 9
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winit-list-lifetime"
#endif
  // The list lives until the end of the full expression: long enough for a parameter.
  ArrayRef(const std::initializer_list<T> &l) : data_(l.begin()), size_(l.size()) {}
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 9
#pragma GCC diagnostic pop
#endif

  const T *data() const { return data_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const T *begin() const { return data_; }
  const T *end() const { return data_ + size_; }
  const T &front() const { return data_[0]; }
  const T &back() const { return data_[size_ - 1]; }
  const T &operator[](std::size_t i) const { return data_[i]; }
  std::vector<typename std::remove_const<T>::type> cloneAsVector() const {
    return {begin(), end()};
  }

private:
  const T *data_ = nullptr;
  std::size_t size_ = 0;
};

#if __cplusplus >= 201703L
template <class T> ArrayRef(const std::vector<T> &) -> ArrayRef<T>;
template <class T, std::size_t N> ArrayRef(const std::array<T, N> &) -> ArrayRef<T>;
template <class T> ArrayRef(const T *, std::size_t) -> ArrayRef<T>;
#endif

} // namespace poplar

namespace gccs {
using poplar::ArrayRef;
} // namespace gccs
