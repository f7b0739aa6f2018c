// SPDX-License-Identifier: Apache-2.0
//
// All kernels of one instruction set. They are in an unnamed namespace, so that each file that
// includes this has its own copy of every function (see vectors.hpp).
#pragma once

#include "decoder/kernels/table.hpp"
#include "table.hpp"

namespace sparq::cpu {
namespace {

#include "approx_scores.hpp"
#include "index_scores.hpp"
#include "key_topk.hpp"
#include "prompt_attention.hpp"
#include "quantise.hpp"
#include "rows.hpp"

inline void widen(const Half *from, float *to, std::size_t n) {
  std::size_t j = 0;
  for (; j + width <= n; j += width)
    store(to + j, loadHalf(from + j));
  if (j < n) {
    Half rest[width] = {};
    float wide[width];
    __builtin_memcpy(rest, from + j, (n - j) * sizeof(Half));
    store(wide, loadHalf(rest));
    __builtin_memcpy(to + j, wide, (n - j) * sizeof(float));
  }
}

inline Vec saturate(Vec x) {
  const Vec most = broadcast(65504.0f);
  x = x > most ? most : x;
  return x < -most ? -most : x;
}

inline void narrow(const float *from, Half *to, std::size_t n) {
  std::size_t j = 0;
  for (; j + width <= n; j += width)
    storeHalf(to + j, saturate(load(from + j)));
  if (j < n) {
    float rest[width] = {};
    Half half[width];
    __builtin_memcpy(rest, from + j, (n - j) * sizeof(float));
    storeHalf(half, saturate(load(rest)));
    __builtin_memcpy(to + j, half, (n - j) * sizeof(Half));
  }
}

inline float streamSum(const float *numbers, std::size_t n) {
  constexpr unsigned chains = 8; // enough to hide the latency of an addition
  Vec sum[chains] = {};
  std::size_t j = 0;
  for (; j + chains * width <= n; j += chains * width)
    for (unsigned i = 0; i < chains; ++i)
      sum[i] = sum[i] + load(numbers + j + i * width);
  for (unsigned i = 1; i < chains; ++i)
    sum[0] = sum[0] + sum[i];
  float total = 0;
  for (unsigned i = 0; i < width; ++i)
    total += sum[0][i];
  for (; j < n; ++j)
    total += numbers[j];
  return total;
}

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
