// SPDX-License-Identifier: Apache-2.0
#include "codelets/attention.cycles.hpp"
#include "list_weights.hpp"
#include "planning.hpp"
#include "sparq/step_names.hpp"
#include "stores/rows.hpp"

namespace sparq {

namespace {

// Fetches the rows {slots, 2, topK} of keys and of values, {slots, topK, headDim}.
void readRows(const Context &context, const Tensor &rows, const Tensor &keys,
              const Tensor &values) {
  const std::size_t d = context.headDim(), nRows = context.nSlots() * keys.dim(1);
  const Tensor keysLanding = context.active(keys).reshape({nRows, d}),
               valuesLanding = context.active(values).reshape({nRows, d});
  const auto offsets = [&](unsigned i) {
    return context.active(rows).slice(i, i + 1, 1).flatten();
  };
  const auto read = [&](const Tensor &landing, const Tensor &of, const char *name) {
    context.cache.lockstep->read(storeOf<SplitRows>(context.cache).buffer(), landing, of,
                                 context.program, {context.dc, name});
  };
  if (2 * nRows * d * 2 <= Lockstep::maxCopyBytes) { // one fixed cost instead of two
    read(concat(keysLanding, valuesLanding, 0), concat(offsets(0), offsets(1), 0), steps::readRows);
  } else {
    read(keysLanding, offsets(0), steps::readKeyRows);
    read(valuesLanding, offsets(1), steps::readValueRows);
  }
}

} // namespace

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

Gathered gatheredAttention(const Context &context, const Waves &waves, const QueryComponents &q,
                           const Selected &selected) {
  const unsigned topK = static_cast<unsigned>(selected.rows.dim(2)), g = context.groupSize(),
                 d = context.headDim(), parts = context.parts();
  ListWeights weights(context, topK);
  const Tensor keyRows = context.sliced(HALF, topK, weights.rowsPerPart, d, "key_rows"),
               valueRows = context.sliced(HALF, topK, weights.rowsPerPart, d, "value_rows");
  readRows(context, selected.rows, keyRows, valueRows);
  bool isFirst = true;
  weights.weigh([&](const ComputeSet &cs, const ListWeights::Piece &piece) {
    if (isFirst) // meanwhile
      weights.addApproxSums(cs, selected, waves, parts - 1);
    isFirst = false;
    const auto [slot, part, first, n, scores, maxima] = piece;
    context.addVertex(cs, "sparq::RowScores", slot, part, cycles::rowScores(n, g, d),
                      "filled"_f = context.filled(slot, part),
                      "keys"_f = keyRows[slot].slice(first, first + n),
                      "query"_f = q.query[slot][part], "scores"_f = scores, "maxima"_f = maxima,
                      "groupSize"_f = g, "headDim"_f = d, "nRows"_f = n, "firstRow"_f = first,
                      "scale"_f = attentionScale(d));
  });
  const WaveIndex onlyWave = context.waveIndex(1);
  // Blocks of the list and slices of the components are shared out over the parts. A slice of few
  // components is worked on two at a time by each worker, so 12 of them make six workers busy.
  const unsigned nBlocks = (topK + 63) / 64;
  const unsigned slices = std::max(1u, std::min(parts / nBlocks, d / 4));
  const unsigned share = (d + slices - 1) / slices;
  const unsigned width = share <= 12 ? (share + 1) / 2 * 2 : (share + 7) / 8 * 8;
  const unsigned nSlices = (d + width - 1) / width;
  const unsigned items = nBlocks * nSlices, itemsPerPart = (items + parts - 1) / parts;
  // {slots, blocks, slices, groupSize * width} -> {slots, blocks, groupSize, headDim}
  const Tensor flatPartials =
      context.sliced(FLOAT, items, itemsPerPart, std::size_t(g) * width, "row_partials");
  Gathered gathered;
  gathered.sums = context.sliced(FLOAT, 1, 1, g, "row_sums").squeeze({1});
  gathered.approxSums = weights.approxSums;
  const ComputeSet cs = context.execute("weighted_values");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    const Tensor e = weights.all(slot);
    for (unsigned item = 0; item != items; ++item) {
      const unsigned b = item / nSlices, c = item % nSlices * width, cEnd = std::min(c + width, d);
      const unsigned first = b * 64, end = std::min(first + 64, topK);
      addWeightedValues(
          context, cs, slot, item / itemsPerPart, onlyWave, {first, 0, topK, end - first, 0},
          valueRows[slot].slice(first, end).slice(c, cEnd, 1), e.slice(first, end, 1),
          flatPartials[slot][item].slice(0, std::size_t(g) * (cEnd - c)).reshape({1, g, cEnd - c}));
    }
  }
  weights.addSums(cs, gathered.sums);
  std::vector<Tensor> slicesOfAll;
  for (unsigned slice = 0; slice != nSlices; ++slice) {
    const unsigned n = std::min(width, d - slice * width);
    std::vector<Tensor> blocks;
    for (unsigned b = 0; b != nBlocks; ++b)
      blocks.push_back(flatPartials.slice(b * nSlices + slice, b * nSlices + slice + 1, 1)
                           .slice(0, std::size_t(g) * n, 2)
                           .reshape({context.placement().slots, 1, g, n}));
    slicesOfAll.push_back(concat(blocks, 1));
  }
  gathered.partials = concat(slicesOfAll, 3);
  return gathered;
}

} // namespace sparq
