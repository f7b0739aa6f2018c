// SPDX-License-Identifier: Apache-2.0
//
// The decoder of sparq_ipu._cpu: conversion only. Arrays are those of PyTorch, by their addresses.
#include "convert.hpp"
#include "cpu.hpp"
#include "decoder/decoder_step.hpp"
#include "decoder/few_bits_product.hpp"

#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <memory>
#include <optional>
#include <tuple>

namespace py = pybind11;
using namespace sparq::cpu;
using sparq::SparqSettings;

namespace {

// A step of a model, whose tensors are given by their addresses. None, and nothing has happened,
// where the caller must do it in parts.
std::optional<std::vector<std::int64_t>>
attendRotaryAt(KVCache &cache, const std::string &type, std::uintptr_t products, std::uintptr_t cos,
               std::uintptr_t sin, std::size_t rows, std::size_t nHeads, std::uintptr_t output,
               const std::optional<SparqSettings> &settings) {
  const RotaryStep step{floatNamed(type),
                        reinterpret_cast<const void *>(products),
                        reinterpret_cast<const void *>(cos),
                        reinterpret_cast<const void *>(sin),
                        rows,
                        nHeads,
                        reinterpret_cast<void *>(output)};
  py::gil_scoped_release release;
  std::vector<std::int64_t> lengths = attendRotary(cache, step, settings ? &*settings : nullptr);
  if (lengths.empty())
    return std::nullopt;
  return lengths;
}

const std::uint16_t *bfloat16At(std::uintptr_t address) {
  return reinterpret_cast<const std::uint16_t *>(address);
}

void fewBitsProduct(std::uintptr_t rows, std::uintptr_t weights, std::uintptr_t scale,
                    std::uintptr_t output, std::size_t nRows, std::size_t inFeatures,
                    std::size_t outFeatures, std::int64_t nThreads, const std::string &isa) {
  py::gil_scoped_release release;
  multiplyFewBits({bfloat16At(rows), reinterpret_cast<const unsigned char *>(weights),
                   bfloat16At(scale), reinterpret_cast<std::uint16_t *>(output), nRows, inFeatures,
                   outFeatures},
                  nThreads, isa);
}

// Addresses of codes, scale and bias, or 0; inputs, outputs.
using LinearAt =
    std::tuple<std::uintptr_t, std::uintptr_t, std::uintptr_t, std::size_t, std::size_t>;

FewBitsWeights linearAt(const LinearAt &at) {
  const auto &[codes, scale, bias, inputs, outputs] = at;
  return {reinterpret_cast<const unsigned char *>(codes), bfloat16At(scale), bfloat16At(bias),
          inputs, outputs};
}

// norms: before attention and before the gates of each layer, then the last one. linears: four of
// each layer, in the order of DecoderStep::Layer.
std::unique_ptr<DecoderStep> decoderStep(const std::vector<std::uintptr_t> &norms,
                                         const std::vector<LinearAt> &linears, float epsilon,
                                         std::size_t hidden, unsigned lanes,
                                         std::uintptr_t activation) {
  const std::size_t n = linears.size() / 4;
  if (n == 0 || linears.size() != 4 * n || norms.size() != 2 * n + 1)
    throw sparq::Error(
        "decoder_step: layers must have four linears and two norms each, and the last one "
        "follows, got " +
        std::to_string(linears.size()) + " and " + std::to_string(norms.size()));
  std::vector<DecoderStep::Layer> layers;
  for (std::size_t i = 0; i < n; ++i)
    layers.push_back({bfloat16At(norms[2 * i]), linearAt(linears[4 * i]),
                      linearAt(linears[4 * i + 1]), bfloat16At(norms[2 * i + 1]),
                      linearAt(linears[4 * i + 2]), linearAt(linears[4 * i + 3])});
  return std::make_unique<DecoderStep>(std::move(layers), bfloat16At(norms.back()), epsilon, hidden,
                                       lanes, bfloat16At(activation));
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

// The cache, and settings, or none for dense attention.
using AttentionAt = std::tuple<KVCache *, std::optional<SparqSettings>>;

// The layer that the caller goes on with, and the seconds of attention and of all else. `lengths`
// gets those of each layer before it, also where this throws.
std::tuple<std::size_t, double, double>
runStep(const DecoderStep &step, std::size_t layer,
        const std::vector<std::optional<AttentionAt>> &attention, std::uintptr_t cos,
        std::uintptr_t sin, std::size_t rows, std::size_t nHeads, std::size_t nRows,
        std::uintptr_t hidden, std::uintptr_t products, std::int64_t nThreads,
        py::typing::List<py::typing::List<std::int64_t>> lengths) {
  std::vector<DecoderStep::Attention> of;
  of.reserve(attention.size());
  for (const auto &at : attention) {
    of.push_back({});
    if (at) {
      const auto &[cache, settings] = *at;
      of.back() = {cache, settings ? &*settings : nullptr};
    }
  }
  DecoderStep::Done done{layer, {}, 0, 0};
  const auto tell = [&] {
    for (const auto &ofLayer : done.lengths)
      lengths.append(py::cast(ofLayer));
  };
  try {
    py::gil_scoped_release release;
    step.run(of, bfloat16At(cos), bfloat16At(sin), rows, nHeads, nRows,
             reinterpret_cast<std::uint16_t *>(hidden), reinterpret_cast<std::uint16_t *>(products),
             nThreads, done);
  } catch (...) {
    tell();
    throw;
  }
  tell();
  return {done.layer, done.attentionSeconds, done.productSeconds};
}

void rmsNormAt(std::uintptr_t weight, float epsilon, std::size_t n, unsigned lanes,
               std::uintptr_t from, std::uintptr_t to) {
  rmsNorm(bfloat16At(weight), epsilon, n, lanes, bfloat16At(from),
          reinterpret_cast<std::uint16_t *>(to));
}

} // namespace

void bindDecoder(py::module_ &m) {
  m.def("few_bits_product", &fewBitsProduct, py::arg("rows"), py::arg("weights"), py::arg("scale"),
        py::arg("output"), py::arg("n_rows"), py::arg("in_features"), py::arg("out_features"),
        py::kw_only(), py::arg("n_threads") = 0, py::arg("isa") = "auto",
        "A linear layer's product, of arrays at these addresses: bfloat16, with weights of 8 bits, "
        "or of 4 where the scale is at 0.");
  m.def("rms_norm", &rmsNormAt, py::arg("weight"), py::arg("epsilon"), py::arg("n"),
        py::arg("lanes"), py::arg("input"), py::arg("output"),
        "RMSNorm of a row of bfloat16, of arrays at these addresses.");

  m.def(
      "mean_of_squares",
      [](std::size_t n, unsigned lanes, std::uintptr_t row) {
        return meanOfSquares(n, lanes, bfloat16At(row));
      },
      py::arg("n"), py::arg("lanes"), py::arg("row"));

  m.def("attend_rotary", &attendRotaryAt, py::arg("cache"), py::arg("dtype"), py::arg("products"),
        py::arg("cos"), py::arg("sin"), py::arg("rows"), py::arg("n_heads"), py::arg("output"),
        py::arg("settings"),
        "A step of one layer, of arrays at these addresses; None: the caller does it in parts.");

  py::class_<DecoderStep>(m, "DecoderStep")
      .def(py::init(&decoderStep), py::arg("norms"), py::arg("linears"), py::arg("epsilon"),
           py::arg("hidden"), py::arg("lanes"), py::arg("activation"))
      .def("begin", &beginStep, py::arg("n_rows"), py::arg("hidden"), py::arg("products"),
           py::arg("n_threads"))
      .def("next", &nextOfStep, py::arg("layer"), py::arg("n_rows"), py::arg("attended"),
           py::arg("hidden"), py::arg("products"), py::arg("n_threads"))
      .def("run", &runStep, py::arg("layer"), py::arg("attention"), py::arg("cos"), py::arg("sin"),
           py::arg("rows"), py::arg("n_heads"), py::arg("n_rows"), py::arg("hidden"),
           py::arg("products"), py::arg("n_threads"), py::arg("lengths"));
}
