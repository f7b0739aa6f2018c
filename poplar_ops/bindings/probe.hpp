// SPDX-License-Identifier: Apache-2.0
//
// Small programs that each do one thing of which the device model has a rule, often, between two
// readings of a tile's cycle counter. What a device takes for it is then set beside the rule.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <poplar/Engine.hpp>
#include <string>
#include <vector>

namespace sparq {

using ProbeSizes = std::map<std::string, unsigned>;

// What a probe adds to a graph of one IPU or several.
struct ProbeGraph {
  poplar::Graph &graph;
  const ProbeSizes &sizes;
  poplar::program::Sequence body;                            // timed
  std::vector<std::function<void(poplar::Engine &)>> onLoad; // before it runs

  unsigned size(const char *name) const { return sizes.at(name); }
  unsigned nTiles() const { return graph.getTarget().getNumTiles(); }
};

// Adds the probe of that name; see probes.cpp for names and sizes. Throws Error for another name,
// and for sizes that are not its own or out of range.
void addProbe(const std::string &kind, ProbeGraph &to);

} // namespace sparq
