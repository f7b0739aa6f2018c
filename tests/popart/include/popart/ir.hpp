// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for a part of PopART's interface. Here: a whole model, of one graph.
#pragma once

#include "graph.hpp"
#include "sessionoptions.hpp"

namespace popart {

class Ir {
public:
  Ir() : graph_(*this) {}
  const SessionOptions &getSessionOptions() const { return options; }
  SessionOptions options;

  Graph &getMainGraph() { return graph_; }
  std::vector<Op *> getAllOps() const {
    std::vector<Op *> all;
    for (const auto &entry : graph_.getOps())
      all.push_back(entry.second.get());
    return all;
  }

private:
  Graph graph_;
};

inline const Ir &Op::getIr() const { return getGraph().getIr(); }

} // namespace popart
