// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

#include "Interval.hpp"

namespace poplar {

class VariableRef {
public:
  explicit VariableRef(unsigned id) : id_(id) {}
  VariableRef(const VariableRef &) = default;
  VariableRef &operator=(const VariableRef &) = default;
  std::size_t hash() const { return id_; }
  unsigned id() const { return id_; }
  friend bool operator==(const VariableRef &a, const VariableRef &b) { return a.id_ == b.id_; }
  friend bool operator!=(const VariableRef &a, const VariableRef &b) { return a.id_ != b.id_; }
  friend bool operator<(const VariableRef &a, const VariableRef &b) { return a.id_ < b.id_; }

private:
  unsigned id_;
};

/// A contiguous part of a variable.
struct VariableInterval {
  VariableRef var;
  Interval interval;
  VariableInterval(VariableRef v, Interval i) : var(v), interval(i) {}
  VariableInterval(const VariableInterval &) = default;
  VariableInterval &operator=(const VariableInterval &) = default;
  friend bool operator==(const VariableInterval &a, const VariableInterval &b) {
    return a.var == b.var && a.interval == b.interval;
  }
  friend bool operator!=(const VariableInterval &a, const VariableInterval &b) { return !(a == b); }
  friend bool operator<(const VariableInterval &a, const VariableInterval &b) {
    return a.var < b.var || (a.var == b.var && a.interval < b.interval);
  }
};

} // namespace poplar

namespace std {
template <> struct hash<poplar::VariableRef> {
  size_t operator()(const poplar::VariableRef &v) const { return v.hash(); }
};
} // namespace std
