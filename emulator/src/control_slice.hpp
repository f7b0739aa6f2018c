// SPDX-License-Identifier: Apache-2.0
// What control flow depends on: enough of a program to know how often each step runs.
#pragma once

#include "program_impl.hpp"
#include "regions.hpp"

#include <unordered_set>
#include <vector>

namespace poplar {
namespace core {

class ControlSlice {
public:
  /// Takes whole variables: more than is needed at times, never less.
  /// Throws runtime_error where control flow depends on data from a stream or a remote buffer.
  ControlSlice(const GraphImpl &graph, ArrayRef<program::Program> programs);

  /// Whether the compute set has a vertex that runs.
  bool contains(unsigned computeSet) const { return computeSets_[computeSet]; }
  bool runs(vertex_id vertex) const { return vertices_[vertex]; }
  bool needs(VarId variable) const { return variables_.count(variable) != 0; }
  /// Whether the tensor has elements of a variable that control flow depends on.
  bool writes(const Tensor &destination) const;

private:
  void collect(const program::Program &program);
  void collectStep(const ProgramImpl &p);
  void followComputeSets();
  bool writesNeeded(vertex_id vertex) const;
  void add(unsigned computeSet, vertex_id vertex);
  void need(const Tensor &t);

  const GraphImpl &g_;
  std::vector<char> computeSets_, vertices_;
  std::vector<char> functions_; // those collected
  std::unordered_set<VarId> variables_;
  std::vector<const ProgramImpl *> reporting_; // Execute that stores what compute() returned
  std::vector<const ProgramImpl *> copies_;    // on chip
  std::vector<const ProgramImpl *> outside_;   // copies from elsewhere
};

} // namespace core
} // namespace poplar
