// SPDX-License-Identifier: Apache-2.0
#include "sparq/lockstep.hpp"
#include "codelets/cache.cycles.hpp"
#include "context.hpp"
#include "sparq/step_names.hpp"
#include <algorithm>
#include <stdexcept>

namespace sparq {

void Lockstep::nextIpu() {
  if (next_ != steps_.size())
    throw std::logic_error("Lockstep: the program of an IPU must have " +
                           std::to_string(steps_.size()) + " steps, got " + std::to_string(next_));
  next_ = 0;
  ++ipu_;
}

// The one at this position, of a kind that the first IPU's program sets.
Lockstep::Step &Lockstep::step(const char *kind) {
  if (ipu_ == 0)
    steps_.push_back({kind, {}, {}, {}, {}});
  else if (next_ == steps_.size() || steps_[next_].kind != kind)
    throw std::logic_error("Lockstep: step " + std::to_string(next_) + " must be " +
                           (next_ == steps_.size() ? "none" : steps_[next_].kind) + ", got " +
                           kind);
  return steps_[next_++];
}

ComputeSet Lockstep::addComputeSet(Graph &graph, const DebugContext &dc) {
  Step &all = step("compute set");
  if (ipu_ == 0)
    all.computeSet = graph.addComputeSet(dc);
  return all.computeSet;
}

ComputeSet Lockstep::execute(Graph &graph, Sequence &program, const DebugContext &dc) {
  const ComputeSet cs = addComputeSet(graph, dc);
  program.add(Execute(cs, dc));
  return cs;
}

void Lockstep::copy(const Tensor &from, const Tensor &to, Sequence &program,
                    const DebugContext &dc) {
  Step &all = step("copy");
  all.from.push_back(from.flatten());
  all.to.push_back(to.flatten());
  if (complete())
    program.add(Copy(concat(all.from), concat(all.to), false, dc));
}

void Lockstep::writeUndef(const Tensor &tensor, Sequence &program, const DebugContext &dc) {
  Step &all = step("no value");
  all.to.push_back(tensor.flatten());
  if (complete())
    program.add(WriteUndef(concat(all.to), dc));
}

void Lockstep::move(bool isRead, const RemoteBuffer &buffer, const Tensor &tensor,
                    const Tensor &rows, Sequence &program, const DebugContext &dc) {
  const std::size_t n = tensor.dim(0),
                    rowBytes = tensor.dim(1) * (tensor.elementType() != HALF ? 4 : 2),
                    most = std::max<std::size_t>(1, maxCopyBytes / rowBytes);
  for (std::size_t begin = 0; begin < n; begin += most) {
    const std::size_t end = std::min(begin + most, n);
    Step &all = step(isRead ? "read" : "write");
    all.buffers.push_back(buffer);
    all.to.push_back(tensor.slice(begin, end));
    all.from.push_back(rows.slice(begin, end));
    if (complete())
      for (unsigned ipu = 0; ipu != nIpus_; ++ipu)
        program.add(isRead ? Copy(all.buffers[ipu], all.to[ipu], all.from[ipu], dc)
                           : Copy(all.to[ipu], all.buffers[ipu], all.from[ipu], dc));
  }
}

Tensor Lockstep::greatest(Graph &graph, const Tensor &predicate, Sequence &program,
                          const DebugContext &dc, unsigned behind) {
  if (nIpus_ == 1)
    return predicate;
  Step &all = step("predicate");
  all.from.push_back(predicate.flatten());
  if (!complete())
    return predicate;
  const unsigned tile = graph.getTarget().getNumTiles() - 1 - behind; // has little to do
  const Type type = predicate.elementType();
  const Tensor greatest = addOnTile(graph, tile, type, {}, {dc, "of_all_ipus"});
  const ComputeSet cs = graph.addComputeSet({dc, "of_all_ipus"});
  const std::string vertex = "sparq::GreatestOfIpus<" + std::string(type.toString()) + ">";
  addVertex(graph, cs, vertex.c_str(), tile, cycles::greatestOfIpus(nIpus_),
            "ofIpus"_f = concat(all.from), "greatest"_f = greatest, "nIpus"_f = nIpus_);
  program.add(Execute(cs, {dc, "of_all_ipus"}));
  return greatest;
}

Tensor Lockstep::agreed(Graph &graph, const Tensor &number, Sequence &program,
                        const DebugContext &dc, unsigned behind) {
  if (nIpus_ == 1)
    return number;
  const Tensor own = graph.addVariable(number.elementType(), {}, {dc, steps::agreed}),
               most = greatest(graph, number, program, {dc, steps::agreed}, behind);
  graph.setTileMapping(own, graph.getTarget().getNumTiles() - 1 - behind);
  Step &all = step(steps::agreed);
  all.to.push_back(own.reshape({1}));
  if (complete())
    program.add(
        Copy(most.reshape({1}).broadcast(nIpus_, 0), concat(all.to), false, {dc, steps::agreed}));
  return own;
}

Function Lockstep::addFunction(Graph &graph, const Program &body) const {
  return complete() ? graph.addFunction(body) : Function();
}

void Lockstep::call(const Function &function, Sequence &program, const DebugContext &dc) const {
  if (complete())
    program.add(Call(function, dc));
}

} // namespace sparq
