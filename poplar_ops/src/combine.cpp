// SPDX-License-Identifier: Apache-2.0
#include "combine.hpp"
#include "codelets/combine.cycles.hpp"
#include "stores/value_sum.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

namespace {

// The step that writes the output: add(cs, slot, slice, first, end) for each slice of the
// components, [first, end), on its tile.
template <class Add> void onSlices(const Context &context, const Add &add) {
  const Placement &p = context.placement();
  const ComputeSet cs = context.execute("combine");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned slice = 0; slice != p.nSlices; ++slice) {
      const unsigned first = slice * p.width;
      add(cs, slot, slice, first, std::min(first + p.width, context.headDim()));
    }
}

} // namespace

void combine(const Context &context, bool meanValue, const Gathered &gathered, const Scores &scores,
             const Tensor &output) {
  const unsigned g = context.groupSize();
  const unsigned nBlocks = static_cast<unsigned>(gathered.partials.dim(1));
  onSlices(context, [&](const ComputeSet &cs, unsigned slot, unsigned slice, unsigned first,
                        unsigned end) {
    addVertex(
        context.graph, cs, "sparq::Combine", context.tile(slot, slice),
        {{"filled", context.filled(slot, slice)},
         {"partials", gathered.partials[slot].slice(first, end, 2).flatten()},
         {"sums", gathered.sums[slot]},
         {"approxSums", gathered.approxSums[slot]},
         {"totals", scores.sums[slot][slice]},
         {"valueSum", storeOf<ValueSum>(context.cache).sum()[context.task(slot)].slice(first, end)},
         {"output", output[slot].slice(first, end, 1).flatten()}},
        {{"nBlocks", nBlocks}, {"groupSize", g}, {"width", end - first}, {"meanValue", meanValue}},
        cycles::combine(nBlocks, end - first, g));
  });
}

void combineList(const Context &context, const Gathered &gathered, const Tensor &output) {
  const unsigned g = context.groupSize();
  const unsigned nBlocks = static_cast<unsigned>(gathered.partials.dim(1));
  onSlices(context,
           [&](const ComputeSet &cs, unsigned slot, unsigned slice, unsigned first, unsigned end) {
             addVertex(context.graph, cs, "sparq::CombineList", context.tile(slot, slice),
                       {{"partials", gathered.partials[slot].slice(first, end, 2).flatten()},
                        {"sums", gathered.sums[slot]},
                        {"output", output[slot].slice(first, end, 1).flatten()}},
                       {{"nBlocks", nBlocks}, {"groupSize", g}, {"width", end - first}},
                       cycles::combineList(nBlocks, end - first, g));
           });
}

void combineDense(const Context &context, const Tensor &accumulator, const Scores &scores,
                  const Tensor &output) {
  const unsigned g = context.groupSize();
  onSlices(context, [&](const ComputeSet &cs, unsigned slot, unsigned slice, unsigned first,
                        unsigned end) {
    addVertex(context.graph, cs, "sparq::CombineDense", context.tile(slot, slice),
              {{"accumulator", accumulator[slot].slice(first, end, 1).flatten()},
               {"sums", scores.sums[slot][slice]},
               {"output", output[slot].slice(first, end, 1).flatten()}},
              {{"groupSize", g}, {"width", end - first}}, cycles::combineDense(end - first, g));
  });
}

} // namespace sparq
