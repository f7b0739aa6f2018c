// SPDX-License-Identifier: Apache-2.0
//
// The decoder of sparq_ipu._cpu: conversion only. Arrays are those of PyTorch, by their addresses.
#include "convert.hpp"
#include "cpu.hpp"
#include "decoder/decoder_step.hpp"
#include "decoder/few_bits_product.hpp"
#include "dispatch.hpp"

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <array>
#include <memory>
#include <optional>
#include <tuple>

namespace py = pybind11;
using namespace py::literals;
using namespace sparq::cpu;
using sparq::SparqSettings;

namespace {

// The members of Rotary, with the addresses of cosine and sine.
using RotaryAt = std::tuple<std::string, std::uintptr_t, std::uintptr_t, std::size_t, std::size_t,
                            std::size_t, float>;

Rotary rotaryAt(const RotaryAt &at) {
  const auto &[type, cos, sin, rows, dim, nHeads, factor] = at;
  return {floatNamed(type),
          reinterpret_cast<const void *>(cos),
          reinterpret_cast<const void *>(sin),
          rows,
          dim,
          nHeads,
          factor};
}

// The members of Wave.
using WaveAt = std::tuple<KVCache *, std::optional<SparqSettings>, std::size_t, std::size_t>;

std::vector<Wave> wavesAt(const std::vector<WaveAt> &at) {
  std::vector<Wave> waves;
  for (const auto &[cache, settings, window, nTokens] : at)
    waves.push_back({cache, settings ? &*settings : nullptr, window, nTokens});
  return waves;
}

// A step of a model, whose tensors are given by their addresses. None, and nothing has happened,
// where the caller must do it in parts.
std::optional<std::vector<std::int64_t>>
attendRotaryAt(const std::vector<WaveAt> &waves, const std::string &type, std::uintptr_t products,
               const RotaryAt &rotary, std::uintptr_t output) {
  const RotaryStep step{floatNamed(type), reinterpret_cast<const void *>(products),
                        rotaryAt(rotary), reinterpret_cast<void *>(output)};
  py::gil_scoped_release release;
  std::vector<std::int64_t> lengths = attendRotary(wavesAt(waves), step);
  if (lengths.empty())
    return std::nullopt;
  return lengths;
}

const std::uint16_t *bfloat16At(std::uintptr_t address) {
  return reinterpret_cast<const std::uint16_t *>(address);
}

void fewBitsProduct(std::uintptr_t rows, std::uintptr_t weights, unsigned bits,
                    std::uintptr_t output, std::size_t nRows, std::size_t inFeatures,
                    std::size_t outFeatures, std::int64_t nThreads, const std::string &isa) {
  py::gil_scoped_release release;
  multiplyFewBits({bfloat16At(rows), reinterpret_cast<const unsigned char *>(weights), bits,
                   reinterpret_cast<std::uint16_t *>(output), nRows, inFeatures, outFeatures,
                   outFeatures},
                  nThreads, isa);
}

// Parts: address, bits and outputs; the address of the bias, or 0; inputs.
using LinearAt = std::tuple<std::vector<std::tuple<std::uintptr_t, unsigned, std::size_t>>,
                            std::uintptr_t, std::size_t>;

FewBitsWeights linearAt(const LinearAt &at) {
  const auto &[parts, bias, inputs] = at;
  FewBitsWeights weights{{}, bfloat16At(bias), inputs, 0};
  for (const auto &[address, bits, outputs] : parts) {
    weights.parts.push_back({reinterpret_cast<const unsigned char *>(address), bits, outputs});
    weights.outputs += outputs;
  }
  return weights;
}

// The members of RmsNorm and of DecoderStep::HeadNorms.
using NormAt = std::tuple<float, unsigned, float, bool>;
using HeadNormsAt = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;

RmsNorm normAt(const NormAt &at) {
  const auto &[epsilon, lanes, offset, roundsTwice] = at;
  return {epsilon, lanes, offset, roundsTwice};
}

// The norms, the linears and the rotary embedding of a layer, in the order of DecoderStep::Layer. A
// missing norm is at 0.
using LayerAt = std::tuple<std::array<std::uintptr_t, 6>, std::array<LinearAt, 4>, int>;

std::unique_ptr<DecoderStep> decoderStep(const std::vector<LayerAt> &layersAt,
                                         std::uintptr_t lastNorm, const NormAt &norm,
                                         const HeadNormsAt &heads, std::size_t hidden,
                                         float multiplier, std::uintptr_t activation,
                                         const std::string &isa) {
  if (layersAt.empty())
    throw sparq::Error("decoder_step: layers must be at least one, got 0");
  std::vector<DecoderStep::Layer> layers;
  for (const auto &[norms, linears, rotary] : layersAt)
    layers.push_back({bfloat16At(norms[0]), linearAt(linears[0]), bfloat16At(norms[1]),
                      bfloat16At(norms[2]), linearAt(linears[1]), bfloat16At(norms[3]),
                      bfloat16At(norms[4]), linearAt(linears[2]), linearAt(linears[3]),
                      bfloat16At(norms[5]), rotary});
  const auto &[nQueries, queryWidth, nKeys, keyWidth] = heads;
  return std::make_unique<DecoderStep>(
      std::move(layers), bfloat16At(lastNorm), normAt(norm),
      DecoderStep::HeadNorms{nQueries, queryWidth, nKeys, keyWidth}, hidden, multiplier,
      bfloat16At(activation), isa);
}

void beginStep(const DecoderStep &step, std::size_t nRows, std::uintptr_t hidden,
               std::uintptr_t products, std::int64_t nThreads) {
  py::gil_scoped_release release;
  step.begin(nRows, bfloat16At(hidden), reinterpret_cast<std::uint16_t *>(products), nThreads);
}

void nextOfStep(const DecoderStep &step, std::size_t layer, std::size_t nRows,
                std::uintptr_t attended, std::uintptr_t hidden, std::uintptr_t products,
                std::int64_t nThreads) {
  py::gil_scoped_release release;
  step.next(layer, nRows, bfloat16At(attended), reinterpret_cast<std::uint16_t *>(hidden),
            reinterpret_cast<std::uint16_t *>(products), nThreads);
}

void turnRows(const DecoderStep &step, std::size_t layer, const RotaryAt &rotary, std::size_t nRows,
              std::uintptr_t products, std::int64_t nThreads) {
  py::gil_scoped_release release;
  step.turn(layer, rotaryAt(rotary), nRows, reinterpret_cast<std::uint16_t *>(products), nThreads);
}

// The layer that the caller goes on with. `lengths` gets those of each layer before it, also where
// this throws.
std::size_t runStep(const DecoderStep &step, std::size_t layer,
                    const std::vector<std::optional<std::vector<WaveAt>>> &attention,
                    const std::vector<RotaryAt> &rotaries, std::size_t nRows, std::uintptr_t hidden,
                    std::uintptr_t products, std::int64_t nThreads,
                    py::typing::List<py::typing::List<std::int64_t>> lengths) {
  std::vector<std::vector<Wave>> of;
  for (const auto &at : attention)
    of.push_back(at ? wavesAt(*at) : std::vector<Wave>());
  std::vector<std::vector<std::int64_t>> ofLayers;
  const auto tell = [&] {
    for (const auto &ofRows : ofLayers)
      lengths.append(py::cast(ofRows));
  };
  std::vector<Rotary> turning;
  for (const RotaryAt &at : rotaries)
    turning.push_back(rotaryAt(at));
  try {
    py::gil_scoped_release release;
    layer = step.run(layer, of, turning, nRows, reinterpret_cast<std::uint16_t *>(hidden),
                     reinterpret_cast<std::uint16_t *>(products), nThreads, ofLayers);
  } catch (...) {
    tell();
    throw;
  }
  tell();
  return layer;
}

const DecoderKernels &kernels() { return *kernelsNamed("decoder_step", "auto").decoder; }

void rmsNormAt(const NormAt &norm, std::uintptr_t weight, std::size_t n, std::uintptr_t from,
               std::uintptr_t to) {
  kernels().rmsNorm(normAt(norm), bfloat16At(weight), n, bfloat16At(from),
                    reinterpret_cast<std::uint16_t *>(to));
}

} // namespace

void bindDecoder(py::module_ &m) {
  m.def("few_bits_product", &fewBitsProduct, "rows"_a, "weights"_a, "bits"_a, "output"_a,
        "n_rows"_a, "in_features"_a, "out_features"_a, py::kw_only(), "n_threads"_a = 0,
        "isa"_a = "auto",
        "A linear layer's product, of bfloat16 arrays at these addresses, with weights of so many "
        "bits.");

  m.def("rms_norm", &rmsNormAt, "norm"_a, "weight"_a, "n"_a, "input"_a, "output"_a,
        "RMSNorm of a row of bfloat16, of arrays at these addresses.");

  m.def(
      "mean_of_squares",
      [](std::size_t n, unsigned lanes, std::uintptr_t row) {
        return kernels().meanOfSquares(n, lanes, bfloat16At(row));
      },
      "n"_a, "lanes"_a, "row"_a);

  m.def("attend_rotary", &attendRotaryAt, "waves"_a, "dtype"_a, "products"_a, "rotary"_a,
        "output"_a,
        "A step of one layer, of arrays at these addresses; None: the caller does it in parts.");

  py::class_<DecoderStep>(m, "DecoderStep")
      .def(py::init(&decoderStep), "layers"_a, "last_norm"_a, "norm"_a, "heads"_a, "hidden"_a,
           "multiplier"_a, "activation"_a, py::kw_only(), "isa"_a = "auto")
      .def("begin", &beginStep, "n_rows"_a, "hidden"_a, "products"_a, "n_threads"_a)
      .def("next", &nextOfStep, "layer"_a, "n_rows"_a, "attended"_a, "hidden"_a, "products"_a,
           "n_threads"_a)
      .def("turn", &turnRows, "layer"_a, "rotary"_a, "n_rows"_a, "products"_a, "n_threads"_a)
      .def("run", &runStep, "layer"_a, "attention"_a, "rotaries"_a, "n_rows"_a, "hidden"_a,
           "products"_a, "n_threads"_a, "lengths"_a);
}
