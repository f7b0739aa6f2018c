// SPDX-License-Identifier: Apache-2.0
#include "waves.hpp"
#include "codelets/dense_scores.cycles.hpp"
#include "stores/rows.hpp"
#include <poplar/Program.hpp>

namespace sparq {

RowWave createRowWave(const Context &context, const Waves &waves) {
  const unsigned perRow = context.layout().positionsPerRow;
  RowWave landing;
  landing.offsets =
      context.sliced(UNSIGNED_INT, waves.stride / perRow, waves.length / perRow, 1, "row_offsets")
          .squeeze({2});
  landing.rows = context.sliced(HALF, waves.stride, waves.length, context.headDim(), "rows");
  return landing;
}

void readRows(const Context &context, const Waves &waves, const RowWave &landing,
              std::size_t firstRow, const WaveIndex &wave, const char *name) {
  const CacheLayout &layout = context.layout();
  const unsigned perRow = layout.positionsPerRow;
  const ComputeSet cs = context.execute("row_offsets");
  for (unsigned slot = 0; slot != context.nSlots(); ++slot) {
    const auto rowBase = static_cast<unsigned>(firstRow + layout.keyRow(context.task(slot), 0));
    for (unsigned part = 0; part != context.parts(); ++part) {
      const unsigned room = waves.room(part), first = part * waves.length / perRow;
      if (room == 0)
        break;
      context.addVertex(cs, "sparq::RowOffsets", slot, part, cycles::rowOffsets(room / perRow),
                        "wave"_f = wave.on(slot, part), "layer"_f = context.cache.layer[slot][part],
                        "rows"_f = landing.offsets[slot].slice(first, first + room / perRow),
                        "nRows"_f = room / perRow, "rowsPerWave"_f = waves.stride / perRow,
                        "firstRow"_f = rowBase + first,
                        "lastRow"_f = rowBase + (layout.capacity - 1) / perRow,
                        "layerRows"_f = context.cache.layerRows());
    }
  }
  const std::size_t nRows = std::size_t(context.nSlots()) * waves.stride / perRow;
  context.cache.lockstep->read(
      storeOf<SplitRows>(context.cache).buffer(),
      context.active(landing.rows).reshape({nRows, std::size_t(perRow) * context.headDim()}),
      context.active(landing.offsets).flatten(), context.program, {context.dc, name});
}

} // namespace sparq
