// SPDX-License-Identifier: Apache-2.0
//
// What every step of an op needs to know: the graph, the cache, the round, and where things go.
#pragma once

#include "sparq/cache.hpp"
#include "vertex.hpp"
#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace sparq {

// Which wave it is: a counter on tile 0, or, where there is only one, a 0 on every part.
struct WaveIndex {
  poplar::Tensor counter; // scalar UNSIGNED_INT; invalid where there is one wave
  poplar::Tensor zero;    // {slots, parts}
  poplar::Tensor on(unsigned slot, unsigned part) const {
    return counter.valid() ? counter : zero[slot][part];
  }
};

// The working tensor `name`: made by `create` the first time, the same one afterwards.
template <class Create>
poplar::Tensor onceIn(std::map<std::string, poplar::Tensor> &variables, const std::string &name,
                      const Create &create) {
  const auto found = variables.find(name);
  return found != variables.end() ? found->second : variables.emplace(name, create()).first->second;
}

// One round of one op.
struct Context {
  poplar::Graph &graph;
  const Cache &cache;
  unsigned round;
  poplar::program::Sequence &program;
  poplar::DebugContext dc;
  std::map<std::string, poplar::Tensor>
      &variables; // working tensors by name: rounds follow one another and share them

  const Plan &plan() const { return cache.plan; }
  const Placement &placement() const { return cache.plan.placement; }
  const CacheLayout &layout() const { return cache.layout(); }
  unsigned groupSize() const { return plan().shape.groupSize(); }
  unsigned headDim() const { return plan().shape.headDim; }
  unsigned nSlots() const { return placement().nActive(round); }
  unsigned parts() const { return placement().parts; }
  unsigned task(unsigned slot) const { return placement().firstTask(round) + slot; }
  unsigned tile(unsigned slot, unsigned part) const { return placement().tile(slot, part); }
  // The length of the slot's task, on that part; see loadQuery.
  poplar::Tensor filled(unsigned slot, unsigned part) const {
    return variables.at("filled")[slot][part];
  }
  // The active slots of a working tensor whose first dimension is the slot.
  poplar::Tensor active(const poplar::Tensor &perSlot) const {
    return perSlot.slice(0, nSlots(), 0);
  }
  // Adds a compute set that the program executes, under a name that the profile shows.
  poplar::ComputeSet execute(const char *name) const {
    const poplar::ComputeSet cs = cache.lockstep->addComputeSet(graph, {dc, name});
    program.add(poplar::program::Execute(cs, {dc, name}));
    return cs;
  }
  // What the program is about to make piece by piece, as an InOut of its vertices: it holds nothing
  // yet. Else Poplar takes it to hold something from the start of the program, and keeps its memory
  // from all others.
  poplar::Tensor begin(const poplar::Tensor &tensor) const {
    cache.lockstep->writeUndef(tensor, program, {dc, "begin"});
    return tensor;
  }
  void copy(const poplar::Tensor &from, const poplar::Tensor &to,
            const poplar::DebugContext &name) const {
    cache.lockstep->copy(from, to, program, name);
  }
  // What the program can branch by: see Lockstep.
  poplar::Tensor greatest(const poplar::Tensor &predicate, unsigned behind = 0) const {
    return cache.lockstep->greatest(graph, predicate, program, dc, behind);
  }
  // What its vertices go by.
  poplar::Tensor agreed(const poplar::Tensor &number, unsigned behind = 0) const {
    return cache.lockstep->agreed(graph, number, program, dc, behind);
  }
  Context within(poplar::program::Sequence &body) const {
    return {graph, cache, round, body, dc, variables};
  }

  // See onceIn.
  template <class Create> poplar::Tensor once(const std::string &name, const Create &create) const {
    return onceIn(variables, name, create);
  }
  WaveIndex waveIndex(unsigned nWaves) const;
  // {slots, parts, shape...}, see addPerPart.
  poplar::Tensor perPart(const poplar::Type &type, const std::vector<std::size_t> &shape,
                         const char *name) const;
  // {slots, extent, inner}, see addSliced.
  poplar::Tensor sliced(const poplar::Type &type, std::size_t extent, std::size_t piece,
                        std::size_t inner, const char *name) const;
};

// A variable {nSlots, nParts, shape...} with element [slot][part] on that part's tile.
poplar::Tensor addPerPart(poplar::Graph &graph, const Placement &placement,
                          const poplar::Type &type, unsigned nParts,
                          const std::vector<std::size_t> &shape, const poplar::DebugContext &dc);

// A constant 0 {slots, parts} UNSIGNED_INT, one on each part's tile.
poplar::Tensor addZeroPerPart(poplar::Graph &graph, const Placement &placement,
                              const poplar::DebugContext &dc);

// A variable {nOuter, extent, inner} whose dimension `extent` is cut into pieces of `piece`, piece
// i of outer element o on tile(o % slots, i). Pieces beyond the parts wrap.
poplar::Tensor addSliced(poplar::Graph &graph, const Placement &placement, const poplar::Type &type,
                         unsigned nOuter, std::size_t extent, std::size_t piece, std::size_t inner,
                         const poplar::DebugContext &dc);

// A variable {nTasks, n, shape...} with element [task][i] on part firstPart + i of the task's slot,
// or on the parts from the first on where there are too few.
poplar::Tensor addOnParts(poplar::Graph &graph, const Placement &placement,
                          const poplar::Type &type, unsigned n,
                          const std::vector<std::size_t> &shape, const poplar::DebugContext &dc,
                          unsigned firstPart = 0);

// The type of key columns.
const poplar::Type &columnType(const CacheLayout &layout);

// The components whose tail is on part `slice` of a slot.
struct TailSlice {
  unsigned begin, end;
  TailSlice(const CacheLayout &layout, unsigned slice)
      : begin(slice * layout.tailComponents),
        end(std::min(begin + layout.tailComponents, layout.indexDim)) {}
  unsigned n() const { return end - begin; }
  // Of a tensor whose first dimension is headDim.
  poplar::Tensor of(const poplar::Tensor &tensor) const { return tensor.slice(begin, end, 0); }
};

// {nTasks, groupSize, headDim} HALF, components spread over the parts.
poplar::Tensor createOutput(poplar::Graph &graph, const Cache &cache,
                            const poplar::DebugContext &dc);

// Throws Error unless the tensor has this type and shape.
void checkTensor(const std::string &op, const char *argument, const poplar::Tensor &tensor,
                 const poplar::Type &type, const std::vector<std::size_t> &shape);

// Adds to `program` a loop over waves around `body`; `wave` (scalar UNSIGNED_INT) counts them. It
// stops behind the longest batch element of the round.
void addWaveLoop(const Context &context, const Waves &waves, const WaveIndex &wave,
                 const poplar::program::Sequence &body);

// Runs `body` where any of `flags` {n} UNSIGNED_INT is set.
void addIfAny(poplar::Graph &graph, const Cache &cache, const poplar::Tensor &flags,
              const poplar::program::Sequence &body, poplar::program::Sequence &program,
              const poplar::DebugContext &dc);

} // namespace sparq
