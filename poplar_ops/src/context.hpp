// SPDX-License-Identifier: Apache-2.0
//
// What every step of an op needs to know: the graph, the cache, the round, and where things go.
#pragma once

#include "sparq/cache.hpp"
#include "vertex.hpp"
#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace sparq {

// Which wave it is: a counter on tile 0, or, where there is only one, a 0 on every part.
struct WaveIndex {
  Tensor counter; // scalar UNSIGNED_INT; invalid where there is one wave
  Tensor zero;    // {slots, parts}
  Tensor on(unsigned slot, unsigned part) const {
    return counter.valid() ? counter : zero[slot][part];
  }
};

// The working tensor `name`: made by `create` the first time, the same one afterwards.
template <class Create>
Tensor onceIn(std::map<std::string, Tensor> &variables, const std::string &name,
              const Create &create) {
  const auto found = variables.find(name);
  return found != variables.end() ? found->second : variables.emplace(name, create()).first->second;
}

// A variable on one tile.
Tensor addOnTile(Graph &graph, unsigned tile, const Type &type,
                 const std::vector<std::size_t> &shape, const DebugContext &dc);

// A variable {nOuter, n, shape...} with element [outer][i] on part partOf(i), or i, of slot
// outer % slots. Parts beyond the last wrap.
using PartOf = std::function<unsigned(unsigned i)>;
Tensor addOnParts(Graph &graph, const Placement &placement, const Type &type, unsigned nOuter,
                  unsigned n, const std::vector<std::size_t> &shape, const DebugContext &dc,
                  const PartOf &partOf = nullptr);

// A program that is added to.
struct Steps {
  Graph &graph;
  const Cache &cache;
  Sequence &program;
  DebugContext dc;

  const Plan &plan() const { return cache.plan; }
  const Placement &placement() const { return cache.plan.placement; }
  const CacheLayout &layout() const { return cache.layout(); }
  // Adds a compute set that the program executes, under a name that the profile shows.
  ComputeSet execute(const char *name) const {
    return cache.lockstep->execute(graph, program, {dc, name});
  }
  void copy(const Tensor &from, const Tensor &to, const char *name) const {
    cache.lockstep->copy(from, to, program, {dc, name});
  }
  Steps within(Sequence &body) const { return {graph, cache, body, dc}; }
  // A new {nTasks} UNSIGNED_INT, each on the home of its slot.
  Tensor perTask(const char *name) const;
};

// One round of one op.
struct Context : Steps {
  unsigned round;
  std::map<std::string, Tensor>
      &variables; // working tensors by name: rounds follow one another and share them

  unsigned groupSize() const { return plan().shape.groupSize(); }
  unsigned headDim() const { return plan().shape.headDim; }
  unsigned nSlots() const { return placement().nActive(round); }
  unsigned parts() const { return placement().parts; }
  unsigned task(unsigned slot) const { return placement().firstTask(round) + slot; }
  unsigned tile(unsigned slot, unsigned part) const { return placement().tile(slot, part); }
  // The length of the slot's task, on that part.
  Tensor filled(unsigned slot, unsigned part) const { return variables.at("filled")[slot][part]; }
  // The active slots of a working tensor whose first dimension is the slot.
  Tensor active(const Tensor &perSlot) const { return perSlot.slice(0, nSlots(), 0); }
  // See sparq::addVertex.
  template <class... Some>
  void addVertex(const ComputeSet &cs, const char *type, unsigned slot, unsigned part,
                 std::uint64_t cycles, const Some &...fields) const {
    sparq::addVertex(graph, cs, type, tile(slot, part), cycles, fields...);
  }
  // What the program is about to make piece by piece, as an InOut of its vertices: it holds nothing
  // yet. Else Poplar takes it to hold something from the start of the program, and keeps its memory
  // from all others.
  Tensor begin(const Tensor &tensor) const {
    cache.lockstep->writeUndef(tensor, program, {dc, "begin"});
    return tensor;
  }
  // What the program can branch by: see Lockstep.
  Tensor greatest(const Tensor &predicate, unsigned behind = 0) const {
    return cache.lockstep->greatest(graph, predicate, program, dc, behind);
  }
  // What its vertices go by.
  Tensor agreed(const Tensor &number, unsigned behind = 0) const {
    return cache.lockstep->agreed(graph, number, program, dc, behind);
  }
  Context within(Sequence &body) const { return {Steps::within(body), round, variables}; }

  // See onceIn.
  template <class Create> Tensor once(const std::string &name, const Create &create) const {
    return onceIn(variables, name, create);
  }
  WaveIndex waveIndex(unsigned nWaves) const;
  // {slots, n, shape...}, see addOnParts; with one for each part; {slots, shape...}, on one part.
  Tensor onParts(const Type &type, unsigned n, const std::vector<std::size_t> &shape,
                 const std::string &name, const PartOf &partOf = nullptr) const;
  Tensor perPart(const Type &type, const std::vector<std::size_t> &shape,
                 const std::string &name) const {
    return onParts(type, parts(), shape, name);
  }
  Tensor onPart(unsigned part, const Type &type, const std::vector<std::size_t> &shape,
                const std::string &name) const {
    return onParts(type, 1, shape, name, [part](unsigned) { return part; }).squeeze({1});
  }
  Tensor onTile(unsigned tile, const Type &type, const std::vector<std::size_t> &shape,
                const std::string &name) const {
    return once(name, [&] { return addOnTile(graph, tile, type, shape, {dc, name}); });
  }
  // {slots, extent, inner}, see addSliced.
  Tensor sliced(const Type &type, std::size_t extent, std::size_t piece, std::size_t inner,
                const char *name, unsigned firstPart = 0) const;
};

// A constant 0 {slots, parts} UNSIGNED_INT, one on each part's tile.
Tensor addZeroPerPart(Graph &graph, const Placement &placement, const DebugContext &dc);

// A variable {nOuter, extent, inner} whose dimension `extent` is cut into pieces of `piece`, piece
// i of outer element o on tile(o % slots, firstPart + i). Pieces beyond the parts wrap.
Tensor addSliced(Graph &graph, const Placement &placement, const Type &type, unsigned nOuter,
                 std::size_t extent, std::size_t piece, std::size_t inner, const DebugContext &dc,
                 unsigned firstPart = 0);

// The type of key columns.
const Type &columnType(const CacheLayout &layout);

// The components whose tail is on part `slice` of a slot.
struct TailSlice {
  unsigned begin, end;
  TailSlice(const CacheLayout &layout, unsigned slice)
      : begin(slice * layout.tailComponents),
        end(std::min(begin + layout.tailComponents, layout.indexDim)) {}
  unsigned n() const { return end - begin; }
  // Of a tensor whose first dimension is headDim.
  Tensor of(const Tensor &tensor) const { return tensor.slice(begin, end, 0); }
};

// {nTasks, groupSize, headDim} HALF, components spread over the parts.
Tensor createOutput(Graph &graph, const Cache &cache, const DebugContext &dc);

// Calls add(context, output) for each round, the output being that of its slots; the output of all
// {batch, nHeads, headDim}.
template <class Add> Tensor addRounds(const Steps &steps, const Add &add) {
  const Shape &shape = steps.plan().shape;
  const Placement &p = steps.placement();
  std::map<std::string, Tensor> variables;
  const Tensor output = createOutput(steps.graph, steps.cache, {steps.dc, "output"});
  for (unsigned round = 0; round != p.nRounds; ++round)
    add(Context{steps, round, variables},
        output.slice(p.firstTask(round), p.firstTask(round) + p.nActive(round), 0));
  return output.reshape({shape.batch, shape.nHeads, shape.headDim});
}

// Adds to `program` a loop over waves around `body`; `wave` (scalar UNSIGNED_INT) counts them. It
// stops behind the longest batch element of the round.
void addWaveLoop(const Context &context, const Waves &waves, const WaveIndex &wave,
                 const Sequence &body);

// Runs `body` where any of `flags` {n} UNSIGNED_INT is set.
void addIfAny(const Steps &steps, const Tensor &flags, const Sequence &body, const char *name);

} // namespace sparq
