// SPDX-License-Identifier: Apache-2.0
#include "weighted_values.hpp"
#include "codelets/weighted_values.cycles.hpp"

namespace sparq {

using namespace poplar;
using namespace poplar::program;

Tensor createByComponent(const Context &context, const Type &type, const char *name) {
  // Laid out {slots, headDim / 8, groupSize, 8}, so that a part's components of all heads are one
  // piece.
  const std::size_t d = context.headDim(), g = context.groupSize();
  const Placement &p = context.placement();
  return context.sliced(type, d / 8, p.width / 8, g * 8, name)
      .reshape({p.slots, d / 8, g, 8})
      .dimShuffle({0, 2, 1, 3})
      .reshape({p.slots, g, d});
}

void addWeightedValues(const Context &context, const ComputeSet &cs, unsigned slot, unsigned part,
                       const WaveIndex &wave, const WeightedSum &sum, const Tensor &values,
                       const Tensor &weights, const Tensor &partials) {
  const unsigned g = context.groupSize();
  const unsigned nRows = static_cast<unsigned>(values.dim(0)),
                 width = static_cast<unsigned>(values.dim(1));
  addVertex(context.graph, cs, "sparq::WeightedValues", context.tile(slot, part),
            {{"filled", context.filled(slot, part)},
             {"wave", wave.on(slot, part)},
             {"values", values.flatten()},
             {"weights", weights.flatten()},
             {"partials", partials.flatten()}},
            {{"begin", sum.begin},
             {"stride", sum.stride},
             {"limit", sum.limit},
             {"headStride", sum.headStride},
             {"weightStride", sum.weightStride},
             {"groupSize", g},
             {"nRows", nRows},
             {"width", width}},
            cycles::weightedValues(static_cast<double>(partials.dim(0)), nRows, width, g));
}

void foldBlocks(const Context &context, const WaveIndex &wave, const Tensor &partials,
                const Tensor &accumulator) {
  const Placement &p = context.placement();
  const unsigned g = context.groupSize(), d = context.headDim(),
                 nBlocks = static_cast<unsigned>(partials.dim(1));
  const ComputeSet cs = context.execute("fold_blocks");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot)
    for (unsigned slice = 0; slice != p.nSlices; ++slice) {
      const unsigned first = slice * p.width, end = std::min(first + p.width, d);
      addVertex(context.graph, cs, "sparq::FoldBlocks", context.tile(slot, slice),
                {{"wave", wave.on(slot, slice)},
                 {"partials", partials[slot].slice(first, end, 2).flatten()},
                 {"accumulator", accumulator[slot].slice(first, end, 1).flatten()}},
                {{"nBlocks", nBlocks}, {"groupSize", g}, {"width", end - first}},
                cycles::foldBlocks(nBlocks, end - first, g));
    }
}

} // namespace sparq
