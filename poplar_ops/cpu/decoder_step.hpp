// SPDX-License-Identifier: Apache-2.0
//
// What a decoder of the kind of Llama does between the attention of one layer and that of the next, in
// one call: a step of one token through a small model takes as long as its calls are many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sparq {
namespace cpu {

// A linear layer whose weights have 4 bits (int4_product.hpp) or 8 (int8_product.hpp). Arrays are the
// caller's, and numbers are bits of bfloat16.
struct FewBitsWeights {
  const void *codes;
  const std::uint16_t *scale; // (outputs,); null: of 4 bits, the scales are between the codes
  const std::uint16_t *bias;  // (outputs,), or null
  std::size_t inputs, outputs;
};

// Of a row of n numbers, in fp32. The sum is in the order of PyTorch's, whose vectors have `lanes` numbers: 4, 8
// or 16, by its version and the processor.
float meanOfSquares(std::size_t n, unsigned lanes, const std::uint16_t *x);

// x / sqrt(meanOfSquares + epsilon), rounded, then times the weight, rounded.
void rmsNorm(const std::uint16_t *weight, float epsilon, std::size_t n, unsigned lanes,
             const std::uint16_t *from, std::uint16_t *to);

class DecoderStep {
public:
  struct Layer {
    const std::uint16_t *inputNorm;  // its weight, (hidden,)
    FewBitsWeights inputs;           // queries, keys and values
    FewBitsWeights output;           // of attention
    const std::uint16_t *outputNorm; // as inputNorm
    FewBitsWeights gates;            // the gate's outputs, then as many that it is multiplied with
    FewBitsWeights down;
  };

  // epsilon, lanes: as `rmsNorm`. activation: of the gate, for each of the 65536 numbers, in the order of their bits.
  // Throws std::invalid_argument for layers whose shapes do not fit together.
  DecoderStep(std::vector<Layer> layers, const std::uint16_t *lastNorm, float epsilon,
              std::size_t hidden, unsigned lanes, const std::uint16_t *activation);

  // hidden (nRows, hidden) -> what the first layer attends with, (nRows, outputs of its inputs).
  void begin(std::size_t nRows, const std::uint16_t *hidden, std::uint16_t *products,
             std::int64_t nThreads) const;

  // From what attention says in a layer, (nRows, inputs of its output), to what the next layer attends with,
  // or after the last one to its normed output. hidden is changed on the way. Every operation is rounded to
  // bfloat16, as PyTorch does.
  void next(std::size_t layer, std::size_t nRows, const std::uint16_t *attended,
            std::uint16_t *hidden, std::uint16_t *products, std::int64_t nThreads) const;

private:
  void normed(const std::uint16_t *weight, std::size_t row, const std::uint16_t *hidden,
              std::uint16_t *to) const;

  const std::vector<Layer> layers;
  const std::uint16_t *const lastNorm;
  const float epsilon;
  const std::size_t hiddenSize;
  const unsigned lanes;
  const std::uint16_t *const activation;
};

} // namespace cpu
} // namespace sparq
