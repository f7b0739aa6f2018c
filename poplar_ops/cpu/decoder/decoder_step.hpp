// SPDX-License-Identifier: Apache-2.0
//
// Rows of tokens through a decoder of norms, linear layers, attention and a gated MLP. A step of
// one token in each row is one call: decoding a small model is bound by the number of calls. The
// tokens of a prompt are rows too; their attention is the caller's.
#pragma once

#include "decoder/kernels/table.hpp"

#include "floats.hpp"
#include "kv_cache.hpp"
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sparq::cpu {

// A decode step of one layer, from its queries, keys and values to the output of its attention: the
// rotary embedding, rounding to fp16, append and attention in one call.

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

  // How far `run` came.
  struct Done {
    std::size_t layer;                              // the one that is next
    std::vector<std::vector<std::int64_t>> lengths; // of the rows, of each layer that attended
    double attentionSeconds, productSeconds;        // the latter with all that is not attention
  };

  // multiplier: of outputs before they are added to the residual. activation: of the gate, for each
  // of the 65536 numbers, in the order of their bits. Throws std::invalid_argument for layers whose
  // shapes do not fit together, Error for an unknown isa.
  DecoderStep(std::vector<Layer> layers, const std::uint16_t *lastNorm, const RmsNorm &norm,
              const HeadNorms &heads, std::size_t hidden, float multiplier,
              const std::uint16_t *activation, const std::string &isa);

  // hidden (nRows, hidden) -> what the first layer attends with, (nRows, outputs of its inputs).
  void begin(std::size_t nRows, const std::uint16_t *hidden, std::uint16_t *products,
             std::int64_t nThreads) const;

  // Maps a layer's attention output (nRows, inputs of its output layer) to the next layer's
  // queries, keys and values, or after the last layer to its normed output. hidden is changed on
  // the way. Every operation is rounded to bfloat16, as PyTorch does.
  void next(std::size_t layer, std::size_t nRows, const std::uint16_t *attended,
            std::uint16_t *hidden, std::uint16_t *products, std::int64_t nThreads) const;

  // Turns the queries and keys of a layer's products (nRows, outputs of its inputs), as
  // `attendRotary` does; row r has the angles of row r modulo rotary.rows. They are bfloat16 or
  // float.
  void turn(std::size_t layer, const Rotary &rotary, std::size_t nRows, std::uint16_t *products,
            std::int64_t nThreads) const;

  // Attention and `next` of the layers from done.layer on, up to one whose attention the caller
  // computes (without waves), or which `attendRotary` leaves to it. products: (nRows, outputs of
  // the inputs of done.layer) in memory for those of any layer, and then of the layer that
  // done.layer is, or the normed output of the last one. Throws Error as `attendRotary`; done is
  // then what was done before that.
  void run(const std::vector<std::vector<Wave>> &attention, const std::vector<Rotary> &rotaries,
           std::size_t nRows, std::uint16_t *hidden, std::uint16_t *products, std::int64_t nThreads,
           Done &done) const;

private:
  // Few enough rows to stay in the second cache.
  void beginPart(std::size_t nRows, const std::uint16_t *hidden, std::uint16_t *products,
                 std::int64_t nThreads) const;
  void nextPart(std::size_t layer, std::size_t nRows, const std::uint16_t *attended,
                std::uint16_t *hidden, std::uint16_t *products, std::int64_t nThreads) const;
  void multiply(const FewBitsWeights &weights, std::size_t nRows, const std::uint16_t *rows,
                std::uint16_t *output, std::int64_t nThreads) const;
  void normed(const std::uint16_t *weight, std::size_t row, const std::uint16_t *hidden,
              std::uint16_t *to) const;
  void add(const std::uint16_t *norm, std::size_t row, std::uint16_t *outputs,
           std::uint16_t *hidden) const;
  void attentionInputs(const Layer &layer, std::size_t nRows, const std::uint16_t *rows,
                       std::uint16_t *products, std::int64_t nThreads) const;

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
