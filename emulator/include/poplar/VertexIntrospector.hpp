// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "Target.hpp"
#include "VectorLayout.hpp"

namespace poplar {

namespace core {
struct VertexRecord;
struct FieldRecord;
struct GraphImpl;
struct Access;
std::vector<double> fieldInitialValues(const FieldRecord &field, std::size_t edge);
std::size_t fieldEdgeCount(const FieldRecord &field);
} // namespace core

/// What an estimator may know of a field: its sizes, and values of state and of constants it is
/// connected to.
class FieldData {
public:
  class SizeT {
  public:
    explicit SizeT(std::size_t v) : v_(v) {}
    std::size_t size() const { return v_; }

  private:
    std::size_t v_;
  };
  unsigned rank() const;
  std::size_t size() const;
  std::size_t getSizeAtIndex(std::size_t i) const;
  SizeT operator[](std::size_t i) const { return SizeT(getSizeAtIndex(i)); }
  layout::Vector getProfilerVectorLayout(std::size_t nestingLevel) const;
  layout::VectorList getProfilerVectorListLayout() const;
  std::string name() const;
  /// The first value. Throws index_error where there is none.
  template <class T> T getInitialValue(const Target &target) const {
    return getInitialValues<T>(target).at(0);
  }
  /// Throws index_error where an element is not constant. `T` is a number, or for a list of vectors
  /// a std::vector of numbers.
  template <class T> std::vector<T> getInitialValues(const Target &) const {
    return Values<T>::of(*field_);
  }

private:
  template <class T> struct Values {
    static std::vector<T> of(const core::FieldRecord &field, std::size_t edge = 0) {
      std::vector<T> r;
      for (double v : core::fieldInitialValues(field, edge))
        r.push_back(static_cast<T>(v));
      return r;
    }
  };
  template <class T> struct Values<std::vector<T>> {
    static std::vector<std::vector<T>> of(const core::FieldRecord &field) {
      std::vector<std::vector<T>> r;
      for (std::size_t i = 0; i < core::fieldEdgeCount(field); ++i)
        r.push_back(Values<T>::of(field, i));
      return r;
    }
  };

  friend class VertexIntrospector;
  const core::FieldRecord *field_ = nullptr;
};

class VertexIntrospector {
public:
  /// Throws unknown_field.
  FieldData getFieldInfo(const std::string &name) const;

private:
  friend struct core::Access;
  const core::VertexRecord *vertex_ = nullptr;
};

} // namespace poplar
