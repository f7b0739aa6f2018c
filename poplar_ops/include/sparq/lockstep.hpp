// SPDX-License-Identifier: Apache-2.0
//
// One program for several IPUs, step by step. Builders run once for each IPU, in the same order,
// and each of their steps becomes one step of all IPUs: a compute set holds the vertices of all, a
// copy the tensors of all, and copies of streaming memory follow one another directly. Steps of
// different IPUs so go on at once without Poplar having to find that they are independent.
//
// All runs but the last only collect; the last one makes the program, and the sequences of the
// others are empty or unused. With one IPU every call is that of Poplar.
#pragma once

#include <poplar/Graph.hpp>
#include <poplar/Program.hpp>
#include <string>
#include <vector>

namespace sparq {

// Graphs, tensors and programs are Poplar's throughout.
using namespace poplar;
using namespace poplar::program;

class Lockstep {
public:
  explicit Lockstep(unsigned nIpus = 1) : nIpus_(nIpus) {}
  // Begins the program of the next IPU, from the first step on.
  void nextIpu();
  unsigned nIpus() const { return nIpus_; }

  // Whether what is built is the program of all.
  bool complete() const { return ipu_ + 1 == nIpus_; }
  ComputeSet addComputeSet(Graph &graph, const DebugContext &dc);
  // The same, which the program executes next.
  ComputeSet execute(Graph &graph, Sequence &program, const DebugContext &dc);
  void copy(const Tensor &from, const Tensor &to, Sequence &program, const DebugContext &dc);
  // The tensor holds nothing yet.
  void writeUndef(const Tensor &tensor, Sequence &program, const DebugContext &dc);
  // tensor {n, row}; rows {n}: row i of the tensor is row rows[i] of the buffer. In as many copies
  // as it takes: a remote buffer is made of data streams.
  void read(const RemoteBuffer &buffer, const Tensor &tensor, const Tensor &rows, Sequence &program,
            const DebugContext &dc) {
    move(true, buffer, tensor, rows, program, dc);
  }
  void write(const RemoteBuffer &buffer, const Tensor &tensor, const Tensor &rows,
             Sequence &program, const DebugContext &dc) {
    move(false, buffer, tensor, rows, program, dc);
  }
  static constexpr std::size_t maxCopyBytes = 128 * 1024 * 1024; // of a data stream
  // {} BOOL or INT that all IPUs branch by: the greatest of their predicates, so true where it is
  // true on any. A branch must do no harm on an IPU that did not ask for it. The result is on the
  // last tile but `behind`.
  Tensor greatest(Graph &graph, const Tensor &predicate, Sequence &program, const DebugContext &dc,
                  unsigned behind = 0);
  // The greatest of a number {} of each IPU, for vertices: a copy on that tile of each.
  Tensor agreed(Graph &graph, const Tensor &number, Sequence &program, const DebugContext &dc,
                unsigned behind = 0);
  // Functions are of the program of all.
  Function addFunction(Graph &graph, const Program &body) const;
  void call(const Function &function, Sequence &program, const DebugContext &dc) const;

private:
  struct Step {
    std::string kind;
    ComputeSet computeSet;
    std::vector<Tensor> from, to; // of each IPU so far
    std::vector<RemoteBuffer> buffers;
  };
  Step &step(const char *kind);
  void move(bool isRead, const RemoteBuffer &buffer, const Tensor &tensor, const Tensor &rows,
            Sequence &program, const DebugContext &dc);

  unsigned nIpus_, ipu_ = 0;
  std::vector<Step> steps_;
  std::size_t next_ = 0;
};

} // namespace sparq
