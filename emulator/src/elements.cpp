// SPDX-License-Identifier: Apache-2.0
#include "elements.hpp"

namespace poplar {
namespace core {

Elements::Parts::const_iterator Elements::find(std::size_t begin, std::size_t end) const {
  auto it = parts_.upper_bound(begin);
  if (it != parts_.begin() && std::prev(it)->second.end > begin)
    --it;
  return it != parts_.end() && it->first < end ? it : parts_.end();
}

void Elements::add(std::size_t begin, std::size_t end, unsigned why) {
  std::vector<std::pair<std::size_t, std::size_t>> gaps;
  forEach(begin, end, [&](std::size_t b, std::size_t e, bool isInside) {
    if (!isInside)
      gaps.emplace_back(b, e);
  });
  for (const auto &gap : gaps) {
    auto it = parts_.emplace(gap.first, Part{gap.second, why}).first;
    const auto next = std::next(it);
    if (next != parts_.end() && next->first == gap.second && next->second.why == why) {
      it->second.end = next->second.end;
      parts_.erase(next);
    }
    if (it != parts_.begin()) {
      const auto before = std::prev(it);
      if (before->second.end == it->first && before->second.why == why) {
        before->second.end = it->second.end;
        parts_.erase(it);
      }
    }
  }
}

void Elements::remove(std::size_t begin, std::size_t end) {
  auto it = parts_.upper_bound(begin);
  if (it != parts_.begin() && std::prev(it)->second.end > begin)
    --it;
  while (it != parts_.end() && it->first < end) {
    const std::size_t from = it->first;
    const Part part = it->second;
    it = parts_.erase(it);
    if (from < begin)
      parts_.emplace(from, Part{begin, part.why});
    if (part.end > end)
      it = parts_.emplace(end, Part{part.end, part.why}).first;
  }
}

void ElementSet::add(const Tensor &t, unsigned why) {
  forEachRegion(Access::impl(t),
                [&](VarId v, std::size_t b, std::size_t n) { variables_[v].add(b, b + n, why); });
}

void ElementSet::add(const ElementSet &other) {
  for (const auto &v : other.variables_)
    for (const auto &part : v.second.parts())
      variables_[v.first].add(part.first, part.second.end, part.second.why);
}

void ElementSet::remove(const Tensor &t) {
  forEachRegion(Access::impl(t), [&](VarId v, std::size_t b, std::size_t n) {
    const auto it = variables_.find(v);
    if (it != variables_.end())
      it->second.remove(b, b + n);
  });
}

void ElementSet::remove(const ElementSet &other) {
  for (const auto &v : other.variables_) {
    const auto it = variables_.find(v.first);
    if (it == variables_.end())
      continue;
    for (const auto &part : v.second.parts())
      it->second.remove(part.first, part.second.end);
  }
}

bool ElementSet::find(const Tensor &t, unsigned &why) const {
  bool found = false;
  forEachRegion(Access::impl(t), [&](VarId v, std::size_t b, std::size_t n) {
    const auto it = variables_.find(v);
    if (found || it == variables_.end())
      return;
    const auto part = it->second.find(b, b + n);
    if (part == it->second.parts().end())
      return;
    found = true;
    why = part->second.why;
  });
  return found;
}

bool sameElements(const ElementSet &a, const ElementSet &b) {
  auto merged = [](const Elements &e) {
    std::vector<std::pair<std::size_t, std::size_t>> r;
    for (const auto &part : e.parts())
      if (!r.empty() && r.back().second == part.first)
        r.back().second = part.second.end;
      else
        r.emplace_back(part.first, part.second.end);
    return r;
  };
  auto holds = [&](const ElementSet &x, const ElementSet &y) {
    for (const auto &v : x.variables_) {
      if (v.second.empty())
        continue;
      const auto it = y.variables_.find(v.first);
      if (it == y.variables_.end() || merged(it->second) != merged(v.second))
        return false;
    }
    return true;
  };
  return holds(a, b) && holds(b, a);
}

} // namespace core
} // namespace poplar
