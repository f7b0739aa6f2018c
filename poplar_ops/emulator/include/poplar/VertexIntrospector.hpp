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
double fieldInitialValue(const FieldRecord &field, std::size_t i);
std::size_t fieldInitialCount(const FieldRecord &field);
} // namespace core

/// What an estimator may know of a field: its sizes and initial values.
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
  template <class T> T getInitialValue(const Target &) const {
    return static_cast<T>(core::fieldInitialValue(*field_, 0));
  }
  template <class T> std::vector<T> getInitialValues(const Target &) const {
    std::vector<T> r;
    for (std::size_t i = 0; i < core::fieldInitialCount(*field_); ++i)
      r.push_back(static_cast<T>(core::fieldInitialValue(*field_, i)));
    return r;
  }

private:
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
