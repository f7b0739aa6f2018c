// SPDX-License-Identifier: Apache-2.0
// Sets of elements of variables, each element with a number that says why it is in the set.
#pragma once

#include <map>

#include "regions.hpp"

namespace poplar {
namespace core {

/// Elements of one variable as disjoint intervals.
class Elements {
public:
  struct Part {
    std::size_t end;
    unsigned why;
  };
  using Parts = std::map<std::size_t, Part>; // by begin

  /// Elements that are in the set already keep their number.
  void add(std::size_t begin, std::size_t end, unsigned why);
  void remove(std::size_t begin, std::size_t end);
  /// The first part with an element in [begin, end), or parts().end().
  Parts::const_iterator find(std::size_t begin, std::size_t end) const;
  bool empty() const { return parts_.empty(); }
  const Parts &parts() const { return parts_; }
  /// Calls f(begin, end, isInside) over [begin, end).
  template <class F> void forEach(std::size_t begin, std::size_t end, F f) const {
    for (auto it = find(begin, end); begin < end; ++it) {
      const bool last = it == parts_.end() || it->first >= end;
      const std::size_t from = last ? end : std::max(begin, it->first);
      if (begin < from)
        f(begin, from, false);
      if (last)
        return;
      const std::size_t to = std::min(end, it->second.end);
      f(from, to, true);
      begin = to;
    }
  }

private:
  Parts parts_;
};

/// Elements of many variables.
class ElementSet {
public:
  void add(const Tensor &t, unsigned why = 0);
  void add(const ElementSet &other);
  void remove(const Tensor &t);
  void remove(const ElementSet &other);
  Elements &operator[](VarId v) { return variables_[v]; }
  /// Sets `why` to the number of the tensor's first element in the set; false if it has none.
  bool find(const Tensor &t, unsigned &why) const;
  /// Whether the two have the same elements, whatever their numbers.
  friend bool sameElements(const ElementSet &a, const ElementSet &b);
  const std::map<VarId, Elements> &variables() const { return variables_; }

private:
  std::map<VarId, Elements> variables_;
};

} // namespace core
} // namespace poplar
