// SPDX-License-Identifier: Apache-2.0
#include "decoder_step.hpp"

#include "dispatch.hpp"
#include "few_bits_product.hpp"
#include "thread_pool.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

namespace sparq::cpu {
namespace {

// Calls work(row), on all threads where there are several rows.
template <class Work> void eachRow(std::size_t nRows, std::int64_t nThreads, const Work &work) {
  if (nRows == 1)
    return work(0);
  PoolLease pool(checkedThreads("decoder_step", nThreads));
  const std::size_t team = pool->nThreads();
  pool->run([&](unsigned thread) {
    const Share rows(nRows, thread, team);
    for (std::size_t row = rows.begin; row < rows.end; ++row)
      work(row);
  });
}

// Calls work(first row, number of rows) for parts of about the same size.
template <class Work> void eachPart(std::size_t nRows, const Work &work) {
  const std::size_t parts = (nRows + mostRows - 1) / mostRows;
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t begin = nRows * part / parts;
    work(begin, nRows * (part + 1) / parts - begin);
  }
}

void check(bool holds, std::size_t layer, const char *rule) {
  if (!holds)
    throw std::invalid_argument("decoder_step: layer " + std::to_string(layer) + " must have " +
                                rule);
}

} // namespace

DecoderStep::DecoderStep(std::vector<Layer> layersIn, const std::uint16_t *lastNormIn,
                         const RmsNorm &normIn, const HeadNorms &headsIn, std::size_t hidden,
                         float multiplierIn, const std::uint16_t *activationIn,
                         const std::string &isaIn)
    : layers(std::move(layersIn)), lastNorm(lastNormIn), norm(normIn), heads(headsIn),
      hiddenSize(hidden), multiplier(multiplierIn), activation(activationIn), isa(isaIn),
      kernels(*kernelsNamed("decoder_step", isaIn).decoder) {
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

void DecoderStep::multiply(const FewBitsWeights &weights, std::size_t nRows,
                           const std::uint16_t *rows, std::uint16_t *output,
                           std::int64_t nThreads) const {
  std::uint16_t *of = output;
  for (const FewBitsWeights::Part &part : weights.parts) {
    multiplyFewBits(
        {rows, part.weights, part.bits, of, nRows, weights.inputs, part.outputs, weights.outputs},
        nThreads, isa);
    of += part.outputs;
  }
  if (weights.bias)
    eachRow(nRows, nThreads, [&](std::size_t row) {
      kernels.addRow(weights.outputs, weights.bias, output + row * weights.outputs);
    });
}

void DecoderStep::normed(const std::uint16_t *weight, std::size_t row, const std::uint16_t *hidden,
                         std::uint16_t *to) const {
  const std::size_t at = row * hiddenSize;
  if (weight)
    kernels.rmsNorm(norm, weight, hiddenSize, hidden + at, to + at);
  else
    std::copy_n(hidden + at, hiddenSize, to + at);
}

// Adds outputs of a row to the residual.
void DecoderStep::add(const std::uint16_t *weight, std::size_t row, std::uint16_t *outputs,
                      std::uint16_t *hidden) const {
  std::uint16_t *const x = outputs + row * hiddenSize;
  if (weight)
    kernels.rmsNorm(norm, weight, hiddenSize, x, x);
  if (multiplier != 1)
    kernels.scaleRow(hiddenSize, multiplier, x);
  kernels.addRow(hiddenSize, x, hidden + row * hiddenSize);
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
      kernels.rmsNorm(norm, layer.queryNorm, heads.queryWidth, x, x);
    for (std::size_t i = 0; i < heads.nKeys; ++i, x += heads.keyWidth)
      kernels.rmsNorm(norm, layer.keyNorm, heads.keyWidth, x, x);
  });
}

void DecoderStep::run(const std::vector<std::vector<Wave>> &attention,
                      const std::vector<Rotary> &rotaries, std::size_t nRows, std::uint16_t *hidden,
                      std::uint16_t *products, std::int64_t nThreads, Done &done) const {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  std::vector<std::uint16_t> attended;
  for (; done.layer < layers.size(); ++done.layer) {
    const std::vector<Wave> &waves = attention.at(done.layer);
    if (waves.empty())
      return;
    const Layer &layer = layers[done.layer];
    Rotary rotary = rotaries.at(layer.rotary < 0 ? 0 : static_cast<std::size_t>(layer.rotary));
    if (layer.rotary < 0)
      rotary.dim = 0;
    std::size_t nOfWaves = 0;
    for (const Wave &wave : waves)
      nOfWaves += wave.nRows();
    check(nOfWaves == nRows, done.layer, "a cache of as many rows");
    for (const Wave &wave : waves) {
      const std::size_t headDim = wave.cache->headDim;
      check(rotary.nHeads * headDim == layer.output.inputs &&
                (rotary.nHeads + 2 * wave.cache->nKvHeads) * headDim == layer.inputs.outputs,
            done.layer, "the heads of its cache");
    }
    attended.resize(nRows * layer.output.inputs);
    const auto start = Clock::now();
    std::vector<std::int64_t> lengths =
        attendRotary(waves, {Float::bfloat16, products, rotary, attended.data()});
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
  const std::size_t width = layers.front().inputs.outputs;
  eachPart(nRows, [&](std::size_t at, std::size_t n) {
    beginPart(n, hidden + at * hiddenSize, products + at * width, nThreads);
  });
}

void DecoderStep::beginPart(std::size_t nRows, const std::uint16_t *hidden, std::uint16_t *products,
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
  const bool isLast = index + 1 == layers.size();
  const std::size_t width = isLast ? hiddenSize : layers[index + 1].inputs.outputs;
  const std::size_t ofAttended = layers[index].output.inputs;
  eachPart(nRows, [&](std::size_t at, std::size_t n) {
    nextPart(index, n, attended + at * ofAttended, hidden + at * hiddenSize, products + at * width,
             nThreads);
  });
}

void DecoderStep::nextPart(std::size_t index, std::size_t nRows, const std::uint16_t *attended,
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
    kernels.gateRow(wide, activation, gates + row * 2 * wide, gated + row * wide);
  });
  multiply(layer.down, nRows, gated, rows, nThreads);
  eachRow(nRows, nThreads, [&](std::size_t row) {
    add(layer.downNorm, row, rows, hidden);
    normed(isLast ? lastNorm : layers[index + 1].inputNorm, row, hidden, isLast ? products : rows);
  });
  if (!isLast)
    attentionInputs(layers[index + 1], nRows, rows, products, nThreads);
}

void DecoderStep::turn(std::size_t index, const Rotary &rotary, std::size_t nRows,
                       std::uint16_t *products, std::int64_t nThreads) const {
  const Layer &layer = layers.at(index);
  const std::size_t width = layer.inputs.outputs, headDim = layer.output.inputs / rotary.nHeads;
  const std::size_t nTurned = (width / headDim + rotary.nHeads) / 2; // queries and keys
  const bool isWide = rotary.type == Float::float32;
  check(rotary.dim <= headDim && rotary.rows > 0 && (isWide || rotary.type == Float::bfloat16),
        index, "a rotary embedding of at most head_dim components, bfloat16 or float32");
  const std::size_t angles = rotary.dim * (isWide ? sizeof(float) : sizeof(std::uint16_t));
  const auto at = [&](const void *from, std::size_t row) {
    return static_cast<const char *>(from) + row % rotary.rows * angles;
  };
  eachRow(nRows, nThreads, [&](std::size_t row) {
    kernels.turnHeads({products + row * width, nTurned, headDim, rotary.dim, at(rotary.cos, row),
                       at(rotary.sin, row), isWide});
  });
}

} // namespace sparq::cpu
