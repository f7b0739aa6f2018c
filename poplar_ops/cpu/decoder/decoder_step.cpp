// SPDX-License-Identifier: Apache-2.0
#include "decoder_step.hpp"

#include "bfloat16.hpp"
#include "few_bits_product.hpp"
#include "thread_pool.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

namespace sparq {
namespace cpu {
namespace {

// PyTorch's sum of a row: four vectors side by side, and sixteen of each at a time, so that no sum
// has many.
template <unsigned lanes> float sumOfSquares(const std::uint16_t *x, std::size_t n) {
  constexpr unsigned side = 4, levels = 4, levelPower = 4, wide = side * lanes;
  constexpr std::size_t levelStep = 1 << levelPower;
  float sums[levels][wide] = {};
  const auto add = [&](std::size_t at, unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      const float value = widened(x[at + i]);
      sums[0][i] += value * value;
    }
  };
  const std::size_t nVectors = n / lanes, nWide = nVectors / side;
  std::size_t i = 0;
  while (i + levelStep <= nWide) {
    for (std::size_t j = 0; j < levelStep; ++j, ++i)
      add(i * wide, wide);
    for (unsigned level = 1; level < levels; ++level) {
      for (unsigned k = 0; k < wide; ++k) {
        sums[level][k] += sums[level - 1][k];
        sums[level - 1][k] = 0;
      }
      if (i & ((levelStep - 1) << (level * levelPower)))
        break;
    }
  }
  for (; i < nWide; ++i)
    add(i * wide, wide);
  for (unsigned level = 1; level < levels; ++level)
    for (unsigned k = 0; k < wide; ++k)
      sums[0][k] += sums[level][k];
  for (std::size_t vector = nWide * side; vector < nVectors; ++vector)
    add(vector * lanes, lanes);
  for (unsigned k = lanes; k < wide; ++k)
    sums[0][k % lanes] += sums[0][k];
  float sum = 0;
  for (std::size_t at = nVectors * lanes; at < n; ++at) {
    const float value = widened(x[at]);
    sum += value * value;
  }
  for (unsigned k = 0; k < lanes; ++k)
    sum += sums[0][k];
  return sum;
}

// Calls work(row), on all threads where there are several rows.
template <class Work> void eachRow(std::size_t nRows, std::int64_t nThreads, const Work &work) {
  if (nRows == 1)
    return work(0);
  PoolLease pool(checkedThreads("decoder_step", nThreads));
  const std::size_t team = pool->nThreads();
  pool->run([&](unsigned thread) {
    for (std::size_t row = thread; row < nRows; row += team)
      work(row);
  });
}

void addTo(std::uint16_t *sum, const std::uint16_t *x, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i)
    sum[i] = narrowed(widened(sum[i]) + widened(x[i]));
}

void multiply(const FewBitsWeights &weights, std::size_t nRows, const std::uint16_t *rows,
              std::uint16_t *output, std::int64_t nThreads) {
  multiplyFewBits(
      {rows, weights.codes, weights.scale, output, nRows, weights.inputs, weights.outputs},
      nThreads, "auto");
  if (!weights.bias)
    return;
  for (std::size_t row = 0; row < nRows; ++row)
    addTo(output + row * weights.outputs, weights.bias, weights.outputs);
}

void check(bool holds, std::size_t layer, const char *rule) {
  if (!holds)
    throw std::invalid_argument("decoder_step: layer " + std::to_string(layer) + " must have " +
                                rule);
}

} // namespace

float meanOfSquares(std::size_t n, unsigned lanes, const std::uint16_t *x) {
  const float sum = lanes == 16  ? sumOfSquares<16>(x, n)
                    : lanes == 8 ? sumOfSquares<8>(x, n)
                                 : sumOfSquares<4>(x, n);
  return sum / static_cast<float>(n);
}

void rmsNorm(const RmsNorm &norm, const std::uint16_t *weight, std::size_t n,
             const std::uint16_t *from, std::uint16_t *to) {
  const float factor = 1.f / std::sqrt(meanOfSquares(n, norm.lanes, from) + norm.epsilon);
  if (norm.roundsTwice)
    for (std::size_t i = 0; i < n; ++i)
      to[i] = narrowed((widened(weight[i]) + norm.offset) *
                       widened(narrowed(widened(from[i]) * factor)));
  else
    for (std::size_t i = 0; i < n; ++i)
      to[i] = narrowed((widened(weight[i]) + norm.offset) * (widened(from[i]) * factor));
}

DecoderStep::DecoderStep(std::vector<Layer> layersIn, const std::uint16_t *lastNormIn,
                         const RmsNorm &normIn, const HeadNorms &headsIn, std::size_t hidden,
                         float multiplierIn, const std::uint16_t *activationIn)
    : layers(std::move(layersIn)), lastNorm(lastNormIn), norm(normIn), heads(headsIn),
      hiddenSize(hidden), multiplier(multiplierIn), activation(activationIn) {
  if (norm.lanes != 4 && norm.lanes != 8 && norm.lanes != 16)
    throw std::invalid_argument("decoder_step: lanes must be 4, 8 or 16, got " +
                                std::to_string(norm.lanes));
  const std::size_t nNormed = heads.nQueries * heads.queryWidth + heads.nKeys * heads.keyWidth;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Layer &layer = layers[i];
    check(layer.inputs.inputs == hidden && layer.output.outputs == hidden, i,
          "attention between hidden and hidden");
    check(layer.gates.inputs == hidden && layer.down.outputs == hidden, i,
          "gates from hidden, and down to hidden");
    check(layer.gates.outputs == 2 * layer.down.inputs, i, "gates of twice the inputs of down");
    check(nNormed <= layer.inputs.outputs, i, "queries and keys of the width of their norms");
  }
}

void DecoderStep::normed(const std::uint16_t *weight, std::size_t row, const std::uint16_t *hidden,
                         std::uint16_t *to) const {
  const std::size_t at = row * hiddenSize;
  if (weight)
    rmsNorm(norm, weight, hiddenSize, hidden + at, to + at);
  else
    std::copy_n(hidden + at, hiddenSize, to + at);
}

// Adds outputs of a row to the residual.
void DecoderStep::add(const std::uint16_t *weight, std::size_t row, std::uint16_t *outputs,
                      std::uint16_t *hidden) const {
  std::uint16_t *const x = outputs + row * hiddenSize;
  if (weight)
    rmsNorm(norm, weight, hiddenSize, x, x);
  if (multiplier != 1)
    for (std::size_t i = 0; i < hiddenSize; ++i)
      x[i] = narrowed(widened(x[i]) * multiplier);
  addTo(hidden + row * hiddenSize, x, hiddenSize);
}

// What a layer attends with, without the rotary embedding.
void DecoderStep::attentionInputs(const Layer &layer, std::size_t nRows, const std::uint16_t *rows,
                                  std::uint16_t *products, std::int64_t nThreads) const {
  multiply(layer.inputs, nRows, rows, products, nThreads);
  if (!layer.queryNorm)
    return;
  eachRow(nRows, nThreads, [&](std::size_t row) {
    std::uint16_t *x = products + row * layer.inputs.outputs;
    for (std::size_t i = 0; i < heads.nQueries; ++i, x += heads.queryWidth)
      rmsNorm(norm, layer.queryNorm, heads.queryWidth, x, x);
    for (std::size_t i = 0; i < heads.nKeys; ++i, x += heads.keyWidth)
      rmsNorm(norm, layer.keyNorm, heads.keyWidth, x, x);
  });
}

void DecoderStep::run(const std::vector<Attention> &attention, const Rotary &rotary,
                      std::size_t nRows, std::uint16_t *hidden, std::uint16_t *products,
                      std::int64_t nThreads, Done &done) const {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  std::vector<std::uint16_t> attended;
  for (; done.layer < layers.size(); ++done.layer) {
    const Attention &of = attention.at(done.layer);
    if (!of.cache)
      return;
    const Layer &layer = layers[done.layer];
    const std::size_t headDim = of.cache->headDim;
    check(of.cache->batch == nRows, done.layer, "a cache of as many rows");
    check(rotary.nHeads * headDim == layer.output.inputs &&
              (rotary.nHeads + 2 * of.cache->nKvHeads) * headDim == layer.inputs.outputs,
          done.layer, "the heads of its cache");
    Rotary ofLayer = rotary;
    if (!layer.isTurned)
      ofLayer.dim = 0;
    attended.resize(nRows * layer.output.inputs);
    const auto start = Clock::now();
    std::vector<std::int64_t> lengths =
        attendRotary(*of.cache, {Float::bfloat16, products, ofLayer, attended.data()}, of.settings);
    if (lengths.empty())
      return;
    done.lengths.push_back(std::move(lengths));
    const auto between = Clock::now();
    next(done.layer, nRows, attended.data(), hidden, products, nThreads);
    done.attentionSeconds += seconds(between - start);
    done.productSeconds += seconds(Clock::now() - between);
  }
}

void DecoderStep::begin(std::size_t nRows, const std::uint16_t *hidden, std::uint16_t *products,
                        std::int64_t nThreads) const {
  const Layer &layer = layers.front();
  std::vector<std::uint16_t> rows(nRows * hiddenSize);
  eachRow(nRows, nThreads,
          [&](std::size_t row) { normed(layer.inputNorm, row, hidden, rows.data()); });
  attentionInputs(layer, nRows, rows.data(), products, nThreads);
}

void DecoderStep::next(std::size_t index, std::size_t nRows, const std::uint16_t *attended,
                       std::uint16_t *hidden, std::uint16_t *products,
                       std::int64_t nThreads) const {
  const Layer &layer = layers[index];
  const bool isLast = index + 1 == layers.size();
  const std::size_t n = hiddenSize, wide = layer.down.inputs;
  std::vector<std::uint16_t> memory(nRows * (n + 3 * wide));
  std::uint16_t *const rows = memory.data(), *const gates = rows + nRows * n;
  std::uint16_t *const gated = gates + nRows * 2 * wide;

  multiply(layer.output, nRows, attended, rows, nThreads);
  eachRow(nRows, nThreads, [&](std::size_t row) {
    add(layer.outputNorm, row, rows, hidden);
    normed(layer.gatesNorm, row, hidden, rows);
  });
  multiply(layer.gates, nRows, rows, gates, nThreads);
  eachRow(nRows, nThreads, [&](std::size_t row) {
    const std::uint16_t *const gate = gates + row * 2 * wide, *const up = gate + wide;
    for (std::size_t i = 0; i < wide; ++i)
      gated[row * wide + i] = narrowed(widened(activation[gate[i]]) * widened(up[i]));
  });
  multiply(layer.down, nRows, gated, rows, nThreads);
  eachRow(nRows, nThreads, [&](std::size_t row) {
    add(layer.downNorm, row, rows, hidden);
    normed(isLast ? lastNorm : layers[index + 1].inputNorm, row, hidden, isLast ? products : rows);
  });
  if (!isLast)
    attentionInputs(layers[index + 1], nRows, rows, products, nThreads);
}

} // namespace cpu
} // namespace sparq
