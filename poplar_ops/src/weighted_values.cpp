// SPDX-License-Identifier: Apache-2.0
#include "weighted_values.hpp"
#include "codelets/attention.cycles.hpp"

namespace sparq {

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
  context.addVertex(cs, "sparq::WeightedValues", slot, part,
                    cycles::weightedValues(static_cast<double>(partials.dim(0)), nRows, width, g),
                    "filled"_f = context.filled(slot, part), "wave"_f = wave.on(slot, part),
                    "values"_f = values, "weights"_f = weights, "partials"_f = partials,
                    "begin"_f = sum.begin, "stride"_f = sum.stride, "limit"_f = sum.limit,
                    "headStride"_f = sum.headStride, "weightStride"_f = sum.weightStride,
                    "groupSize"_f = g, "nRows"_f = nRows, "width"_f = width);
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
      context.addVertex(
          cs, "sparq::FoldBlocks", slot, slice, cycles::foldBlocks(nBlocks, end - first, g),
          "wave"_f = wave.on(slot, slice), "partials"_f = partials[slot].slice(first, end, 2),
          "accumulator"_f = accumulator[slot].slice(first, end, 1), "nBlocks"_f = nBlocks,
          "groupSize"_f = g, "width"_f = end - first);
    }
}

} // namespace sparq
