// SPDX-License-Identifier: Apache-2.0
//
// All kernels of one instruction set. They are in an unnamed namespace, so that each file that
// includes this has its own copy of every function (see vectors.hpp).
#pragma once

#include "decoder/kernels/table.hpp"
#include "table.hpp"

namespace sparq::cpu {
namespace {

#include "all.hpp"

#include "decoder/kernels/group_products.hpp"
#include "decoder/kernels/row_operations.hpp"

constexpr DecoderKernels decoderKernels{
    roundRows,          groupProducts, meanOfSquares, rmsNorm,    addRow,
    scaleRow,           gateRow,       turnHeads,     rowsOfTile, width < blockOutputs ? 1 : 2,
    sizeof(GroupOfTile)};

constexpr Kernels tableOf(const char *name) {
  return {name,        widen,        narrow,          addRows,       encodeRows,
          decodeRows,  approxScores, indexScores,     quantiseBlock, softmaxWeights,
          roughKeys,   keyTopK,      meritsAt,        rowScores,     weightedValues,
          promptQuery, promptBlock,  promptAttention, streamSum,     &decoderKernels};
}

} // namespace
} // namespace sparq::cpu
