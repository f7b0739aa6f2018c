// SPDX-License-Identifier: Apache-2.0
//
// Rows of tokens through a decoder of norms, linear layers, attention and a gated MLP. A step of
// one token in each row is one call: decoding a small model is bound by the number of calls. The
// tokens of a prompt are rows too; their attention is the caller's.
#pragma once

#include "decoder/kernels/table.hpp"

#include "dispatch.hpp"
#include "few_bits_product.hpp"
#include "floats.hpp"
#include "kv_cache.hpp"
#include "thread_pool.hpp"
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace sparq::cpu {

// ---- a decode step of one layer, from its queries, keys and values to the output of its
// attention: the rotary embedding, rounding to fp16, append and attention in one call

struct Rotary {
  Float type; // of cos and sin
  // (rows, dim), contiguous. The sine has the sign that its component of rotate_half has.
  // Components of a head from dim on are not rotated.
  const void *cos, *sin;
  std::size_t rows, dim;
  std::size_t nHeads; // of a query
  float factor;       // of the scores, beside 1 / sqrt(headDim)
};

// Rows of a step that attend together: nTokens of each batch element of a cache, those of one token
// after those of the token before.
struct Wave {
  KVCache *cache;
  const SparqSettings *settings; // of one token; null: dense
  std::size_t window;            // as of KVCache::attention
  std::size_t nTokens;
  std::size_t nRows() const { return cache->batch * nTokens; }
};

// Arrays of that type, contiguous. The rows are those of all waves, one after the other. A later
// wave may have the next tokens of the same texts.
struct RotaryStep {
  Float type;
  const void *products; // (rows, nHeads + 2 * nKvHeads, headDim): queries, keys, values
  Rotary rotary;        // its rows are these, or one for all
  void *output;         // (rows, nHeads, headDim)
};

// Queries and keys become x * cos + rotate_half(x) * sin. The products are rounded to the type of
// the rotary embedding and the sum to that of x, as PyTorch does. Then queries are multiplied by
// the factor, all is rounded to fp16, the tokens are appended and attended to.
//
// Returns the lengths after it, of each row. Empty, and nothing has happened, where fp16 can not
// hold a number. Throws Error as `append` and `attention` do; then too nothing has happened.
std::vector<std::int64_t> attendRotary(const std::vector<Wave> &waves, const RotaryStep &step);

// Linear layers of one input, as FewBitsProduct takes them. Arrays are the caller's.
struct FewBitsWeights {
  struct Part {
    const unsigned char *weights;
    unsigned bits;
    std::size_t outputs;
  };
  std::vector<Part> parts;
  const std::uint16_t *bias; // (outputs,) bits of bfloat16, or null
  std::size_t inputs, outputs;
};

class DecoderStep {
public:
  // Norms are given by their weights, (hidden,); null: the family has none there.
  struct Layer {
    const std::uint16_t *inputNorm;
    FewBitsWeights inputs;                    // queries, keys and values
    const std::uint16_t *queryNorm, *keyNorm; // (width,) of HeadNorms
    FewBitsWeights output;                    // of attention
    const std::uint16_t *outputNorm;          // before it is added to the residual
    const std::uint16_t *gatesNorm;
    FewBitsWeights gates; // the gate's outputs, then as many that it is multiplied with
    FewBitsWeights down;
    const std::uint16_t *downNorm; // as outputNorm
    int rotary;                    // number of its rotary embedding in `run`; -1: none
  };

  // Norms of queries and keys, each over `width` numbers: of one head, or of all.
  struct HeadNorms {
    std::size_t nQueries, queryWidth, nKeys, keyWidth;
  };

  // multiplier: of outputs before they are added to the residual. activation: of the gate, for each
  // of the 65536 numbers, in the order of their bits. Throws std::invalid_argument for layers whose
  // shapes do not fit together, Error for an unknown isa.
  DecoderStep(std::vector<Layer> layersIn, const std::uint16_t *lastNormIn, const RmsNorm &normIn,
              const HeadNorms &headsIn, std::size_t hidden, float multiplierIn,
              const std::uint16_t *activationIn, const std::string &isaIn)
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

  // hidden (nRows, hidden) -> what the first layer attends with, (nRows, outputs of its inputs).
  void begin(std::size_t nRows, const std::uint16_t *hidden, std::uint16_t *products,
             std::int64_t nThreads) const {
    const std::size_t width = layers.front().inputs.outputs;
    eachPart("decoder_step", nRows, nThreads,
             [&](std::size_t at, std::size_t n, std::int64_t threads) {
               beginPart(n, hidden + at * hiddenSize, products + at * width, threads);
             });
  }

  // Maps a layer's attention output (nRows, inputs of its output layer) to the next layer's
  // queries, keys and values, or after the last layer to its normed output. hidden is changed on
  // the way. Every operation is rounded to bfloat16, as PyTorch does.
  void next(std::size_t index, std::size_t nRows, const std::uint16_t *attended,
            std::uint16_t *hidden, std::uint16_t *products, std::int64_t nThreads) const {
    const bool isLast = index + 1 == layers.size();
    const std::size_t width = isLast ? hiddenSize : layers[index + 1].inputs.outputs;
    const std::size_t ofAttended = layers[index].output.inputs;
    eachPart("decoder_step", nRows, nThreads,
             [&](std::size_t at, std::size_t n, std::int64_t threads) {
               nextPart(index, n, attended + at * ofAttended, hidden + at * hiddenSize,
                        products + at * width, threads);
             });
  }

  // Turns the queries and keys of a layer's products (nRows, outputs of its inputs), as
  // `attendRotary` does; row r has the angles of row r modulo rotary.rows. They are bfloat16 or
  // float.
  void turn(std::size_t index, const Rotary &rotary, std::size_t nRows, std::uint16_t *products,
            std::int64_t nThreads) const {
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

  // Attention and `next` of the layers from `index` on, up to one whose attention the caller
  // computes (without waves), or which `attendRotary` leaves to it; returns that one. products:
  // (nRows, outputs of the inputs of the first) in memory for those of any layer, and then of the
  // one that is returned, or the normed output of the last one. lengths: gets those of the rows, of
  // each layer that attended, also where this throws Error as `attendRotary`.
  std::size_t run(std::size_t index, const std::vector<std::vector<Wave>> &attention,
                  const std::vector<Rotary> &rotaries, std::size_t nRows, std::uint16_t *hidden,
                  std::uint16_t *products, std::int64_t nThreads,
                  std::vector<std::vector<std::int64_t>> &lengths) const {
    std::vector<std::uint16_t> attended;
    for (; index < layers.size() && !attention.at(index).empty(); ++index) {
      const std::vector<Wave> &waves = attention[index];
      const Layer &layer = layers[index];
      Rotary rotary = rotaries.at(layer.rotary < 0 ? 0 : static_cast<std::size_t>(layer.rotary));
      if (layer.rotary < 0)
        rotary.dim = 0;
      std::size_t nOfWaves = 0;
      for (const Wave &wave : waves)
        nOfWaves += wave.nRows();
      check(nOfWaves == nRows, index, "a cache of as many rows");
      for (const Wave &wave : waves) {
        const std::size_t headDim = wave.cache->headDim;
        check(rotary.nHeads * headDim == layer.output.inputs &&
                  (rotary.nHeads + 2 * wave.cache->nKvHeads) * headDim == layer.inputs.outputs,
              index, "the heads of its cache");
      }
      attended.resize(nRows * layer.output.inputs);
      std::vector<std::int64_t> ofRows =
          attendRotary(waves, {Float::bfloat16, products, rotary, attended.data()});
      if (ofRows.empty())
        return index;
      lengths.push_back(std::move(ofRows));
      next(index, nRows, attended.data(), hidden, products, nThreads);
    }
    return index;
  }

private:
  // Calls work(row), on all threads where there are several rows.
  template <class Work>
  static void eachRow(std::size_t nRows, std::int64_t nThreads, const Work &work) {
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

  static void check(bool holds, std::size_t layer, const char *rule) {
    if (!holds)
      throw std::invalid_argument("decoder_step: layer " + std::to_string(layer) + " must have " +
                                  rule);
  }

  // Room for n numbers, which a thread keeps: pages that are new or zeroed cost time for each part.
  static std::uint16_t *kept(std::size_t n) {
    thread_local std::vector<std::uint16_t> memory;
    if (memory.size() < n)
      memory.resize(n);
    return memory.data();
  }

  // Few enough rows to stay in the second cache.
  void beginPart(std::size_t nRows, const std::uint16_t *hidden, std::uint16_t *products,
                 std::int64_t nThreads) const {
    const Layer &layer = layers.front();
    std::uint16_t *const rows = kept(nRows * hiddenSize);
    eachRow(nRows, nThreads, [&](std::size_t row) { normed(layer.inputNorm, row, hidden, rows); });
    attentionInputs(layer, nRows, rows, products, nThreads);
  }
  void nextPart(std::size_t index, std::size_t nRows, const std::uint16_t *attended,
                std::uint16_t *hidden, std::uint16_t *products, std::int64_t nThreads) const {
    const Layer &layer = layers[index];
    const bool isLast = index + 1 == layers.size();
    const std::size_t n = hiddenSize, wide = layer.down.inputs;
    std::uint16_t *const rows = kept(nRows * (n + 3 * wide)), *const gates = rows + nRows * n;
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
      normed(isLast ? lastNorm : layers[index + 1].inputNorm, row, hidden,
             isLast ? products : rows);
    });
    if (!isLast)
      attentionInputs(layers[index + 1], nRows, rows, products, nThreads);
  }
  void multiply(const FewBitsWeights &weights, std::size_t nRows, const std::uint16_t *rows,
                std::uint16_t *output, std::int64_t nThreads) const {
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
  void normed(const std::uint16_t *weight, std::size_t row, const std::uint16_t *hidden,
              std::uint16_t *to) const {
    const std::size_t at = row * hiddenSize;
    if (weight)
      kernels.rmsNorm(norm, weight, hiddenSize, hidden + at, to + at);
    else
      std::copy_n(hidden + at, hiddenSize, to + at);
  }
  // Adds outputs of a row to the residual.
  void add(const std::uint16_t *weight, std::size_t row, std::uint16_t *outputs,
           std::uint16_t *hidden) const {
    std::uint16_t *const x = outputs + row * hiddenSize;
    if (weight)
      kernels.rmsNorm(norm, weight, hiddenSize, x, x);
    if (multiplier != 1)
      kernels.scaleRow(hiddenSize, multiplier, x);
    kernels.addRow(hiddenSize, x, hidden + row * hiddenSize);
  }
  // What a layer attends with, without the rotary embedding.
  void attentionInputs(const Layer &layer, std::size_t nRows, const std::uint16_t *rows,
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

  const std::vector<Layer> layers;
  const std::uint16_t *const lastNorm;
  const RmsNorm norm;
  const HeadNorms heads;
  const std::size_t hiddenSize;
  const float multiplier;
  const std::uint16_t *const activation;
  const std::string isa;
  const DecoderKernels &kernels;
};

} // namespace sparq::cpu
