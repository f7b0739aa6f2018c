// SPDX-License-Identifier: Apache-2.0
#include "codelets/cache.cycles.hpp"
#include "sparq/cache.hpp"
#include "stores/store.hpp"
#include <algorithm>

namespace sparq {

namespace {

// Positions that move at a time where it does not matter to the stores.
constexpr unsigned defaultStep = 512;

class Fill : Steps {
public:
  Fill(const Steps &steps, const Tensor &keyIn, const Tensor &valueIn, const Tensor &lengthsIn)
      : Steps(steps), shape(plan().shape), p(placement()), key(keyIn), value(valueIn),
        lengths(lengthsIn) {
    held = graph.addVariable(UNSIGNED_INT, {shape.batch}, {dc, "held"});
    replace = graph.addVariable(UNSIGNED_INT, {shape.batch}, {dc, "replace"});
    for (const auto &store : cache.stores)
      if (const unsigned wanted = store->fillStep(cache.layout()); wanted != 0)
        stepLength = wanted;
  }

  void add() {
    const ComputeSet cs = execute("fill_lengths");
    for (unsigned b = 0; b != shape.batch; ++b) {
      const unsigned home = p.home(b * shape.nKvHeads % p.slots);
      graph.setTileMapping(held[b], home);
      graph.setTileMapping(replace[b], home);
      addVertex(graph, cs, "sparq::FillLength", home, cycles::fillLength(), "length"_f = lengths[b],
                "held"_f = held[b], "replace"_f = replace[b], "nTokens"_f = nTokens());
    }
    for (unsigned b = 0; b != shape.batch; ++b)
      program.add(If(replace[b], element(b), Sequence(), {dc, "fill"}));
    for (const auto &store : cache.stores)
      store->filled(*this, replace);
  }

private:
  unsigned nTokens() const { return static_cast<unsigned>(key.dim(2)); }

  Sequence element(unsigned b) {
    Sequence body({}, {dc, "fill"});
    const Steps steps = within(body);
    const unsigned first = b * shape.nKvHeads, end = first + shape.nKvHeads;
    for (unsigned begin = 0; begin < nTokens(); begin += stepLength)
      for (unsigned task = first; task < end; task += p.slots)
        addStep(steps, b, task, std::min(p.slots, end - task), begin);
    steps.copy(held[b].expand({0}).broadcast(shape.nKvHeads, 0), cache.filled.slice(first, end),
               "set_filled");
    for (const auto &store : cache.stores)
      store->replaced(steps, first, end);
    return body;
  }

  void addStep(const Steps &steps, unsigned b, unsigned firstTask, unsigned nTasks,
               unsigned begin) {
    const unsigned end = std::min(begin + stepLength, nTokens());
    FillStep step{steps,      variables, held[b], steps.execute("fill_offsets"),
                  stepLength, firstTask, nTasks,  begin,
                  end,        {},        {},      {}};
    for (unsigned task = firstTask; task != firstTask + nTasks; ++task)
      for (const bool ofValues : {false, true})
        (ofValues ? step.values : step.keys)
            .push_back((ofValues ? value : key)[b][task % shape.nKvHeads].slice(begin, end));
    for (const auto &store : cache.stores)
      store->fill(step);
  }

  const Shape &shape;
  const Placement &p;
  const Tensor key, value, lengths;
  Tensor held,
      replace; // {batch} UNSIGNED_INT: what an element holds if it is replaced; whether it is
  unsigned stepLength = defaultStep;
  std::map<std::string, Tensor> variables; // of all steps
};

void fillWithZeros(Graph &graph, const Tensor &tensor) {
  if (tensor.elementType() != HALF)
    graph.setInitialValue(tensor, 0);
  else
    graph.setInitialValueHalf(tensor, 0);
}

} // namespace

void initialiseCache(Graph &graph, const Cache &cache) {
  const bool one = cache.layout().nLayers == 1;
  fillWithZeros(graph, one ? cache.filled : cache.storedFilled);
  for (const auto &store : cache.stores)
    for (const Layered &layered : store->layered())
      fillWithZeros(graph, one ? layered.state : layered.stored);
}

void fillCache(Graph &graph, const Cache &cache, const Tensor &key, const Tensor &value,
               const Tensor &lengths, Sequence &program, const DebugContext &dc) {
  checkGrows("fill", cache);
  Fill({graph, cache, program, dc}, key, value, lengths).add();
}

Tensor activeTokens(Graph &graph, const Cache &cache, const Tensor &requested, Sequence &program,
                    const DebugContext &dc) {
  const Shape &shape = cache.plan.shape;
  const Placement &p = cache.plan.placement;
  const Tensor active = graph.addVariable(UNSIGNED_INT, {shape.batch}, {dc, "active"});
  const ComputeSet cs = cache.lockstep->execute(graph, program, {dc, "active"});
  for (unsigned b = 0; b != shape.batch; ++b) {
    const unsigned task = b * shape.nKvHeads, home = p.home(task % p.slots);
    graph.setTileMapping(active[b], home);
    addVertex(graph, cs, "sparq::ActiveToken", home, cycles::activeToken(),
              "requested"_f = requested[b], "filled"_f = cache.filled[task], "active"_f = active[b],
              "capacity"_f = shape.capacity);
  }
  return active;
}

Tensor heldPositions(Graph &graph, const Cache &cache, Sequence &program, const DebugContext &dc) {
  const Shape &shape = cache.plan.shape;
  const Tensor held = graph.addVariable(INT, {shape.batch}, {dc, "held"});
  for (unsigned b = 0; b != shape.batch; ++b)
    graph.setTileMapping(
        held[b], cache.plan.placement.home(b * shape.nKvHeads % cache.plan.placement.slots));
  cache.lockstep->copy(
      cache.filled.reshape({shape.batch, shape.nKvHeads}).slice(0, 1, 1).flatten().reinterpret(INT),
      held, program, {dc, "held"});
  return held;
}

} // namespace sparq
