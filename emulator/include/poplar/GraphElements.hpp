// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "StringRef.hpp"

namespace poplar {

typedef unsigned vertex_id;

class FieldRef;
namespace core {
struct Access;
}

/// A vertex of a graph; fields by name: v["in"].
class VertexRef {
public:
  VertexRef() = default;
  FieldRef operator[](StringRef fieldName) const;
  vertex_id getId() const { return id_; }
  friend bool operator==(const VertexRef &a, const VertexRef &b) { return a.id_ == b.id_; }
  friend bool operator<(const VertexRef &a, const VertexRef &b) { return a.id_ < b.id_; }

private:
  friend struct core::Access;
  vertex_id id_ = ~0u;
};

/// A field of a vertex, or one element of a field that is a list of edges: v["in"][2].
class FieldRef {
public:
  FieldRef() = default;
  FieldRef operator[](std::size_t index) const;
  bool isIndexed() const { return indexed_; }
  std::size_t getIndex() const { return index_; }

private:
  friend class VertexRef;
  friend struct core::Access;
  VertexRef vertex_;
  std::string name_;
  std::size_t index_ = 0;
  bool indexed_ = false;
};

/// A set of vertices that run together.
class ComputeSet {
public:
  ComputeSet() = default;
  explicit ComputeSet(unsigned id) : id_(id) {}
  unsigned getId() const { return id_; }

private:
  unsigned id_ = ~0u;
};

/// A program made once and called many times.
class Function {
public:
  Function() = default;
  explicit Function(unsigned id) : id_(id) {}
  Function(const Function &) = default;
  Function &operator=(const Function &) = default;
  unsigned getId() const { return id_; }

private:
  friend class Graph;
  unsigned id_ = ~0u;
};

class FunctionBuffer {
public:
  FunctionBuffer() = default;
  explicit FunctionBuffer(unsigned id) : id_(id) {}
  unsigned getId() const { return id_; }

private:
  unsigned id_ = ~0u;
};

class HostFunction {
public:
  HostFunction() = default;
  explicit HostFunction(unsigned id) : id_(id) {}
  unsigned getId() const { return id_; }

private:
  unsigned id_ = ~0u;
};

} // namespace poplar
