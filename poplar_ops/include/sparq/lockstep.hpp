// SPDX-License-Identifier: Apache-2.0
//
// The same program on several IPUs, step by step: its builders run once for each IPU, in the same order, and
// each of their steps becomes one step of all IPUs. A compute set has the vertices of all, a copy the tensors
// of all, and copies of streaming memory follow one another directly. So nothing rests on Poplar finding that
// parts of IPUs, one written behind the other, do not depend on one another.
//
// The first runs only collect; that for the last IPU makes the program, and those of the others are empty or
// thrown away. With one IPU every call does what Poplar's of that name does.
#pragma once

#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>
#include <string>
#include <vector>

namespace sparq {

class Lockstep {
public:
  explicit Lockstep(unsigned nIpus = 1) : nIpus_(nIpus) {}
  // What is built next is for the IPU behind this one, from the first step on.
  void nextIpu();
  unsigned nIpus() const { return nIpus_; }

  // Whether what is built is the program of all.
  bool complete() const { return ipu_ + 1 == nIpus_; }
  poplar::ComputeSet addComputeSet(poplar::Graph &graph, const poplar::DebugContext &dc);
  void copy(const poplar::Tensor &from, const poplar::Tensor &to,
            poplar::program::Sequence &program, const poplar::DebugContext &dc);
  // The tensor holds nothing yet.
  void writeUndef(const poplar::Tensor &tensor, poplar::program::Sequence &program,
                  const poplar::DebugContext &dc);
  // tensor {n, row}; rows {n}: row i of the tensor is row rows[i] of the buffer.
  void read(const poplar::RemoteBuffer &buffer, const poplar::Tensor &tensor,
            const poplar::Tensor &rows, poplar::program::Sequence &program,
            const poplar::DebugContext &dc);
  void write(const poplar::RemoteBuffer &buffer, const poplar::Tensor &tensor,
             const poplar::Tensor &rows, poplar::program::Sequence &program,
             const poplar::DebugContext &dc);
  // What all IPUs branch by, {} BOOL or INT: the greatest of theirs, so true where it is true of any. What a
  // branch or another pass does where an IPU did not ask for it must do no harm there. `behind`: tiles behind the one
  // that it is on.
  poplar::Tensor greatest(poplar::Graph &graph, const poplar::Tensor &predicate,
                          poplar::program::Sequence &program, const poplar::DebugContext &dc,
                          unsigned behind = 0);
  // The greatest of a number {} of each, which vertices of all read: on such a tile of each.
  poplar::Tensor agreed(poplar::Graph &graph, const poplar::Tensor &number,
                        poplar::program::Sequence &program, const poplar::DebugContext &dc,
                        unsigned behind = 0);
  // Functions are of the program of all.
  poplar::Function addFunction(poplar::Graph &graph, const poplar::program::Program &body) const;
  void call(const poplar::Function &function, poplar::program::Sequence &program,
            const poplar::DebugContext &dc) const;

private:
  struct Step {
    std::string kind;
    poplar::ComputeSet computeSet;
    std::vector<poplar::Tensor> from, to; // of each IPU so far
    std::vector<poplar::RemoteBuffer> buffers;
  };
  Step &step(const char *kind);

  unsigned nIpus_, ipu_ = 0;
  std::vector<Step> steps_;
  std::size_t next_ = 0;
};

} // namespace sparq
