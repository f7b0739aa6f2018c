// SPDX-License-Identifier: Apache-2.0
//
// Rows of K or V into SRAM, in sequence.
#pragma once

#include "context.hpp"

namespace sparq {

struct RowWave {
  Tensor offsets; // {slots, stride / positionsPerRow} UNSIGNED_INT
  Tensor rows;    // {slots, stride, headDim} HALF, position p on part p / length
};
RowWave createRowWave(const Context &context, const Waves &waves);
// Reads the rows of the current wave: of the keys, or, `firstRow` behind them, of the values.
void readRows(const Context &context, const Waves &waves, const RowWave &landing,
              std::size_t firstRow, const WaveIndex &wave, const char *name);

} // namespace sparq
