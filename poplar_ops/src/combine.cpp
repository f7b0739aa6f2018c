// SPDX-License-Identifier: Apache-2.0
#include "codelets/attention.cycles.hpp"
#include "stores/rows.hpp"

namespace sparq {

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
    context.addVertex(
        cs, "sparq::Combine", slot, slice, cycles::combine(nBlocks, end - first, g),
        "filled"_f = context.filled(slot, slice),
        "partials"_f = gathered.partials[slot].slice(first, end, 2), "sums"_f = gathered.sums[slot],
        "approxSums"_f = gathered.approxSums[slot], "totals"_f = scores.sums[slot][slice],
        "valueSum"_f = storeOf<ValueSum>(context.cache).sum()[context.task(slot)].slice(first, end),
        "output"_f = output[slot].slice(first, end, 1), "nBlocks"_f = nBlocks, "groupSize"_f = g,
        "width"_f = end - first, "meanValue"_f = meanValue);
  });
}

// Sums of weights where a slice of a slot has them.
using SumsOf = std::function<Tensor(unsigned slot, unsigned slice)>;
static void combineSums(const Context &context, const Tensor &partials, const SumsOf &sums,
                        const Tensor &output) {
  const unsigned g = context.groupSize(), nBlocks = static_cast<unsigned>(partials.dim(1));
  onSlices(context, [&](const ComputeSet &cs, unsigned slot, unsigned slice, unsigned first,
                        unsigned end) {
    context.addVertex(cs, "sparq::CombineList", slot, slice,
                      cycles::combineList(nBlocks, end - first, g),
                      "partials"_f = partials[slot].slice(first, end, 2),
                      "sums"_f = sums(slot, slice), "output"_f = output[slot].slice(first, end, 1),
                      "nBlocks"_f = nBlocks, "groupSize"_f = g, "width"_f = end - first);
  });
}

void combineList(const Context &context, const Gathered &gathered, const Tensor &output) {
  combineSums(
      context, gathered.partials, [&](unsigned slot, unsigned) { return gathered.sums[slot]; },
      output);
}

void combineDense(const Context &context, const Tensor &accumulator, const Scores &scores,
                  const Tensor &output) {
  combineSums(
      context, accumulator.expand({1}),
      [&](unsigned slot, unsigned slice) { return scores.sums[slot][slice]; }, output);
}

} // namespace sparq
