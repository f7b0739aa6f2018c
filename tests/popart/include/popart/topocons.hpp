// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for a part of PopART's interface. Here: which operator must come before which, beyond
// what the tensors say.
#pragma once

#include "op.hpp"
#include <set>

namespace popart {

class TopoCons {
public:
  void insert(Op *before, Op *after, bool = false) {
    if (before == after)
      throw error("a constraint must be between two operators, got one");
    afters_[before].insert(after);
  }
  bool contains(Op *before, Op *after) const {
    const auto found = afters_.find(before);
    return found != afters_.end() && found->second.count(after) != 0;
  }
  std::vector<Op *> getAfters(Op *before) const {
    const auto found = afters_.find(before);
    return found == afters_.end() ? std::vector<Op *>()
                                  : std::vector<Op *>(found->second.begin(), found->second.end());
  }

private:
  std::map<Op *, std::set<Op *>> afters_;
};

} // namespace popart
