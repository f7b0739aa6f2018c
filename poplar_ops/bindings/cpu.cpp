// SPDX-License-Identifier: Apache-2.0
//
// The Python module sparq_ipu._cpu: conversion only. What the arguments mean is said in
// python/sparq_ipu/backends/cpu.py.
#include "convert.hpp"
#include "cpu_prompt.hpp"
#include "decoder_step.hpp"
#include "dispatch.hpp"
#include "int4_product.hpp"
#include "int8_product.hpp"
#include "kv_cache.hpp"
#include "openmp.hpp"
#include "rotary_step.hpp"
#include "stream_sum.hpp"
#include "thread_pool.hpp"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <tuple>

namespace py = pybind11;
using namespace sparq::cpu;
using sparq::CacheSpec;
using sparq::Error;
using sparq::SparqSettings;
using sparq::WindowSettings;

namespace {

// An fp16 array of that many dimensions; its shape is checked by the caller.
void checkHalf(const char *op, const char *argument, const py::array &array, py::ssize_t nDims) {
  if (!array.dtype().equal(py::dtype("float16")) || array.ndim() != nDims)
    throw Error(std::string(op) + ": " + argument + " must be float16 with " +
                std::to_string(nDims) + " dimensions, got " +
                py::str(array.dtype()).cast<std::string>() + " with " +
                std::to_string(array.ndim()));
}

void checkShape(const char *op, const char *argument, const py::array &array, const char *axes,
                const std::vector<std::int64_t> &shape) { // -1: any
  bool right = true;
  for (std::size_t i = 0; i < shape.size(); ++i)
    right = right && (shape[i] < 0 || array.shape(static_cast<py::ssize_t>(i)) == shape[i]);
  if (!right)
    throw Error(std::string(op) + ": " + argument + " must have shape " + axes + ", got " +
                py::str(array.attr("shape")).cast<std::string>());
}

using Integers = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;

const std::int64_t *perElement(const char *op, const char *argument, const KVCache &cache,
                               const Integers &array) {
  if (array.ndim() != 1 || array.shape(0) != static_cast<py::ssize_t>(cache.batch))
    throw Error(std::string(op) + ": " + argument +
                " must have shape (batch=" + std::to_string(cache.batch) + ",), got " +
                py::str(array.attr("shape")).cast<std::string>());
  return array.data();
}

// Whether the object can be read as it is: an ndarray, no subclass, of fp16 in this machine's byte order
// and of this shape, each row's numbers one after another; with `finite`, without NaN and infinity.
bool isOrdinary(const py::object &object, std::initializer_list<std::size_t> shape, bool finite) {
  constexpr int numberOfHalf = 23; // NPY_HALF
  const auto *const ndarray = py::detail::npy_api::get().PyArray_Type_;
  if (Py_TYPE(object.ptr()) != ndarray)
    return false;
  const auto array = py::reinterpret_borrow<py::array>(object);
  const py::dtype type = array.dtype();
  if (type.num() != numberOfHalf || type.byteorder() != '=' ||
      array.ndim() != static_cast<py::ssize_t>(shape.size()) ||
      array.strides(array.ndim() - 1) != sizeof(Half))
    return false;
  std::size_t rows = 1;
  py::ssize_t axis = 0;
  for (const std::size_t n : shape) {
    if (n == 0 || array.shape(axis) != static_cast<py::ssize_t>(n))
      return false;
    if (++axis != array.ndim())
      rows *= n;
  }
  if (!finite)
    return true;
  const std::size_t width = *(shape.end() - 1);
  for (std::size_t row = 0; row != rows; ++row) {
    const char *at = static_cast<const char *>(array.data());
    std::size_t left = row;
    for (py::ssize_t a = array.ndim() - 2; a >= 0; --a) {
      const auto n = static_cast<std::size_t>(array.shape(a));
      at += static_cast<std::ptrdiff_t>(left % n) * array.strides(a);
      left /= n;
    }
    bool all = true;
    for (std::size_t c = 0; c != width; ++c) {
      Half bits;
      std::memcpy(&bits, at + c * sizeof(Half), sizeof(bits));
      all = all && (bits & 0x7c00u) != 0x7c00u;
    }
    if (!all)
      return false;
  }
  return true;
}

Tokens tokensOf(const py::array &a) {
  return {static_cast<const char *>(a.data()),
          {a.strides(0), a.strides(1), a.strides(2), a.strides(3)}};
}

// One token for every batch element, checked and appended in one call. False, and nothing has
// happened, where the caller must look at the arrays.
bool appendToken(KVCache &cache, const py::object &key, const py::object &value, bool checkFinite) {
  for (const py::object *const tokens : {&key, &value})
    if (!isOrdinary(*tokens, {cache.batch, cache.nKvHeads, 1, cache.headDim}, checkFinite))
      return false;
  const std::vector<std::int64_t> counts(cache.batch, 1);
  const Tokens keys = tokensOf(py::reinterpret_borrow<py::array>(key)),
               values = tokensOf(py::reinterpret_borrow<py::array>(value));
  py::gil_scoped_release release;
  cache.append(keys, values, 1, counts.data());
  return true;
}

void append(KVCache &cache, const py::array &key, const py::array &value, const Integers &lengths) {
  const std::vector<std::int64_t> shape{static_cast<std::int64_t>(cache.batch),
                                        static_cast<std::int64_t>(cache.nKvHeads), -1,
                                        static_cast<std::int64_t>(cache.headDim)};
  checkHalf("append", "key", key, 4);
  checkHalf("append", "value", value, 4);
  checkShape("append", "key", key, "(batch, n_kv_heads, n_tokens, head_dim)", shape);
  checkShape("append", "value", value, "(batch, n_kv_heads, n_tokens, head_dim)",
             {shape[0], shape[1], key.shape(2), shape[3]});
  const std::int64_t *counts = perElement("append", "lengths", cache, lengths);
  const Tokens keyTokens = tokensOf(key), valueTokens = tokensOf(value);
  const std::int64_t nTokens = key.shape(2);
  py::gil_scoped_release release;
  cache.append(keyTokens, valueTokens, nTokens, counts);
}

py::typing::Tuple<py::array, py::array> readPositions(const KVCache &cache, std::int64_t start,
                                                      std::int64_t stop) {
  const auto most = static_cast<std::int64_t>(cache.capacity);
  if (start < 0 || stop < start || stop > most)
    throw Error("read: positions must be in [0, capacity=" + std::to_string(most) + "], got " +
                std::to_string(start) + " to " + std::to_string(stop));
  const std::vector<py::ssize_t> shape{static_cast<py::ssize_t>(cache.batch),
                                       static_cast<py::ssize_t>(cache.nKvHeads), stop - start,
                                       static_cast<py::ssize_t>(cache.headDim)};
  py::array key(py::dtype("float16"), shape), value(py::dtype("float16"), shape);
  Half *const keys = static_cast<Half *>(key.mutable_data());
  Half *const values = static_cast<Half *>(value.mutable_data());
  {
    py::gil_scoped_release release;
    cache.read(keys, values, start, stop - start);
  }
  return py::make_tuple(key, value);
}

// A query of one step, checked, and an output for it: `attend(query, n_heads, output)` runs without the
// interpreter's lock.
template <class Attend>
py::array attended(const char *op, const KVCache &cache, const py::array &query,
                   const Attend &attend) {
  checkHalf(op, "query", query, 3);
  checkShape(
      op, "query", query, "(batch, n_heads, head_dim)",
      {static_cast<std::int64_t>(cache.batch), -1, static_cast<std::int64_t>(cache.headDim)});
  py::array output(py::dtype("float16"), {query.shape(0), query.shape(1), query.shape(2)});
  const Query view{static_cast<const char *>(query.data()),
                   {query.strides(0), query.strides(1), query.strides(2)}};
  const std::int64_t nHeads = query.shape(1);
  Half *const to = static_cast<Half *>(output.mutable_data());
  {
    py::gil_scoped_release release;
    attend(view, nHeads, to);
  }
  return output;
}

py::array attention(const KVCache &cache, const py::array &query,
                    const std::optional<SparqSettings> &settings) {
  return attended(settings ? "sparq_attention" : "dense_attention", cache, query,
                  [&](const Query &view, std::int64_t nHeads, Half *to) {
                    cache.attention(view, nHeads, settings ? &*settings : nullptr, to);
                  });
}

py::array windowAttention(KVCache &cache, const py::array &query, const WindowSettings &settings) {
  return attended("window_attention", cache, query,
                  [&](const Query &view, std::int64_t nHeads, Half *to) {
                    cache.windowAttention(view, nHeads, settings, to);
                  });
}

// `attention` or `windowAttention`, checked in the same call. None, and nothing has happened, where the
// caller must look at the query.
std::optional<py::array> attentionOfQuery(KVCache &cache, const py::object &query,
                                          const py::object &settings, bool checkFinite) {
  if (!py::isinstance<py::array>(query))
    return std::nullopt;
  const auto array = py::reinterpret_borrow<py::array>(query);
  if (array.ndim() != 3)
    return std::nullopt;
  const auto nHeads = static_cast<std::size_t>(array.shape(1));
  if (!isOrdinary(query, {cache.batch, nHeads, cache.headDim}, checkFinite))
    return std::nullopt;
  if (settings.is_none())
    return attention(cache, array, std::nullopt);
  if (py::hasattr(settings, "n_recent"))
    return windowAttention(cache, array, settings.cast<WindowSettings>());
  return attention(cache, array, settings.cast<SparqSettings>());
}

// A step of a model, whose tensors are given by their addresses. None, and nothing has happened, where
// the caller must do it in parts.
std::optional<std::vector<std::int64_t>>
attendRotaryAt(KVCache &cache, const std::string &type, std::uintptr_t products, std::uintptr_t cos,
               std::uintptr_t sin, std::size_t rows, std::size_t nHeads, std::uintptr_t output,
               const std::optional<SparqSettings> &settings) {
  const RotaryStep step{type == "float32"    ? Float::float32
                        : type == "bfloat16" ? Float::bfloat16
                                             : Float::float16,
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

void observe(KVCache &cache, const py::array &query, const WindowSettings &settings) {
  const char *const op = "observe";
  checkHalf(op, "query", query, 4);
  checkShape(
      op, "query", query, "(batch, n_heads, n_tokens, head_dim)",
      {static_cast<std::int64_t>(cache.batch), -1, -1, static_cast<std::int64_t>(cache.headDim)});
  const Query view{static_cast<const char *>(query.data()),
                   {query.strides(0), query.strides(1), query.strides(3)},
                   query.strides(2),
                   static_cast<std::size_t>(query.shape(2))};
  const std::int64_t nHeads = query.shape(1);
  py::gil_scoped_release release;
  cache.observe(view, nHeads, settings);
}

// The shares of the steps that a batch element's history remembers, the oldest first.
std::vector<py::array> historyOf(const KVCache &cache, std::size_t element) {
  if (element >= cache.batch)
    throw Error("history: element must be in [0, batch=" + std::to_string(cache.batch) + "), got " +
                std::to_string(element));
  std::vector<py::array> steps;
  for (const std::vector<std::uint32_t> &shares : cache.historyOf(element))
    steps.push_back(
        py::array_t<std::uint32_t>(static_cast<py::ssize_t>(shares.size()), shares.data()));
  return steps;
}

void addStep(KVCache &cache, std::size_t element,
             const py::array_t<std::uint32_t, py::array::c_style | py::array::forcecast> &shares) {
  cache.addStep(element, shares.data(), static_cast<std::size_t>(shares.size()));
}

// Dense attention of the last tokens held, query (batch, n_heads, n_tokens, head_dim) ->
// (batch, n_kv_heads, n_tokens, n_heads / n_kv_heads, head_dim).
py::array attentionOfTokens(const KVCache &cache, const py::array &query) {
  const char *const op = "dense_attention";
  checkHalf(op, "query", query, 4);
  checkShape(
      op, "query", query, "(batch, n_heads, n_tokens, head_dim)",
      {static_cast<std::int64_t>(cache.batch), -1, -1, static_cast<std::int64_t>(cache.headDim)});
  const std::int64_t nHeads = query.shape(1), nKvHeads = static_cast<std::int64_t>(cache.nKvHeads);
  py::array output(py::dtype("float16"),
                   {query.shape(0), static_cast<py::ssize_t>(nKvHeads), query.shape(2),
                    query.shape(1) / nKvHeads, query.shape(3)});
  const Query view{static_cast<const char *>(query.data()),
                   {query.strides(0), query.strides(1), query.strides(3)},
                   query.strides(2),
                   static_cast<std::size_t>(query.shape(2))};
  Half *const to = static_cast<Half *>(output.mutable_data());
  {
    py::gil_scoped_release release;
    cache.attention(view, nHeads, nullptr, to);
  }
  return output;
}

const std::uint16_t *bfloat16At(std::uintptr_t address) {
  return reinterpret_cast<const std::uint16_t *>(address);
}

void int4Product(std::uintptr_t rows, std::uintptr_t weights, std::uintptr_t output,
                 std::size_t nRows, std::size_t inFeatures, std::size_t outFeatures,
                 std::int64_t nThreads, const std::string &isa) {
  py::gil_scoped_release release;
  multiplyInt4({bfloat16At(rows), reinterpret_cast<const unsigned char *>(weights),
                reinterpret_cast<std::uint16_t *>(output), nRows, inFeatures, outFeatures},
               nThreads, isa);
}

void int8Product(std::uintptr_t rows, std::uintptr_t codes, std::uintptr_t scale,
                 std::uintptr_t output, std::size_t nRows, std::size_t inFeatures,
                 std::size_t outFeatures, std::int64_t nThreads, const std::string &isa) {
  py::gil_scoped_release release;
  multiplyInt8({bfloat16At(rows), reinterpret_cast<const signed char *>(codes), bfloat16At(scale),
                reinterpret_cast<std::uint16_t *>(output), nRows, inFeatures, outFeatures},
               nThreads, isa);
}

// Addresses of codes, scale and bias, or 0; inputs, outputs.
using LinearAt =
    std::tuple<std::uintptr_t, std::uintptr_t, std::uintptr_t, std::size_t, std::size_t>;

FewBitsWeights linearAt(const LinearAt &at) {
  const auto &[codes, scale, bias, inputs, outputs] = at;
  return {reinterpret_cast<const void *>(codes), bfloat16At(scale), bfloat16At(bias), inputs,
          outputs};
}

// norms: before attention and before the gates of each layer, then the last one. linears: four of each layer,
// in the order of DecoderStep::Layer.
std::unique_ptr<DecoderStep> decoderStep(const std::vector<std::uintptr_t> &norms,
                                         const std::vector<LinearAt> &linears, float epsilon,
                                         std::size_t hidden, unsigned lanes,
                                         std::uintptr_t activation) {
  const std::size_t n = linears.size() / 4;
  if (n == 0 || linears.size() != 4 * n || norms.size() != 2 * n + 1)
    throw Error("decoder_step: layers must have four linears and two norms each, and the last one "
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

// The layer that the caller goes on with, and the seconds of attention and of all else. `lengths` gets those of
// each layer before it, also where this throws.
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

PYBIND11_MODULE(_cpu, m) {
  m.doc() = "CPU kernels of sparq-ipu.";
  sparq::translateErrors();

  m.def("available_isas", [] {
    std::vector<std::string> names;
    for (const Kernels *kernels : availableKernels())
      names.push_back(kernels->name);
    return names;
  });
  m.def("default_threads", &defaultThreads);
  sparq::bindPromptAttention(m);
  m.def("use_openmp", &useOpenmp,
        "Run calls on the threads of the OpenMP runtime that is in the process; False: none is.");

  m.def(
      "int4_product", &int4Product, py::arg("rows"), py::arg("weights"), py::arg("output"),
      py::arg("n_rows"), py::arg("in_features"), py::arg("out_features"), py::kw_only(),
      py::arg("n_threads") = 0, py::arg("isa") = "auto",
      "A linear layer's product, of arrays at these addresses: bfloat16, with weights of 4 bits.");
  m.def("int8_product", &int8Product, py::arg("rows"), py::arg("codes"), py::arg("scale"),
        py::arg("output"), py::arg("n_rows"), py::arg("in_features"), py::arg("out_features"),
        py::kw_only(), py::arg("n_threads") = 0, py::arg("isa") = "auto",
        "A linear layer's product, of arrays at these addresses: bfloat16, with codes of 8 bits.");

  m.def("rms_norm", &rmsNormAt, py::arg("weight"), py::arg("epsilon"), py::arg("n"),
        py::arg("lanes"), py::arg("input"), py::arg("output"),
        "RMSNorm of a row of bfloat16, of arrays at these addresses.");

  m.def(
      "mean_of_squares",
      [](std::size_t n, unsigned lanes, std::uintptr_t row) {
        return meanOfSquares(n, lanes, bfloat16At(row));
      },
      py::arg("n"), py::arg("lanes"), py::arg("row"));

  py::class_<KVCache>(m, "KVCache")
      .def(py::init<const CacheSpec &, std::int64_t, const std::string &>(), py::arg("spec"),
           py::kw_only(), py::arg("n_threads") = 0, py::arg("isa") = "auto")
      .def_property_readonly("lengths", &KVCache::lengths)
      .def_property_readonly("n_threads", [](const KVCache &cache) { return cache.nThreads; })
      .def_property_readonly("isa", [](const KVCache &cache) { return cache.kernels.name; })
      .def_property_readonly(
          "key_index_bytes",
          [](const KVCache &cache) { return cache.nPairs() * cache.keyIndex.pairBytes(); })
      .def_property_readonly("read_ahead",
                             [](const KVCache &cache) { return cache.readAhead.bytes(); })
      .def_property_readonly("fetch_level",
                             [](const KVCache &cache) { return cache.fetchLevel.level(); })
      .def("rows", &KVCache::rowsOf, py::arg("index"))
      .def("append", &append, py::arg("key"), py::arg("value"), py::arg("lengths"))
      .def("append_token", &appendToken, py::arg("key"), py::arg("value"), py::arg("check_finite"))
      .def("read", &readPositions, py::arg("start"), py::arg("stop"))
      .def(
          "truncate",
          [](KVCache &cache, const Integers &lengths) {
            const std::int64_t *data = perElement("truncate", "lengths", cache, lengths);
            py::gil_scoped_release release;
            cache.truncate(data);
          },
          py::arg("lengths"))
      .def("reset", &KVCache::reset, py::call_guard<py::gil_scoped_release>())
      .def(
          "reorder",
          [](KVCache &cache, const Integers &index) {
            const std::int64_t *data = perElement("reorder", "index", cache, index);
            py::gil_scoped_release release;
            cache.reorder(data);
          },
          py::arg("index"))
      .def("attention", &attention, py::arg("query"), py::arg("settings") = py::none(),
           "SparQ attention, or dense attention where settings is None.")
      .def("window_attention", &windowAttention, py::arg("query"), py::arg("settings"))
      .def("attention_of_query", &attentionOfQuery, py::arg("query"), py::arg("settings"),
           py::arg("check_finite"))
      .def("attend_rotary", &attendRotaryAt, py::arg("dtype"), py::arg("products"), py::arg("cos"),
           py::arg("sin"), py::arg("rows"), py::arg("n_heads"), py::arg("output"),
           py::arg("settings"))
      .def("observe", &observe, py::arg("query"), py::arg("settings"))
      .def_property_readonly("n_recent", &KVCache::nRecent)
      .def("history", &historyOf, py::arg("element"))
      .def(
          "begin_history",
          [](KVCache &cache, std::int64_t nRecent) {
            cache.beginHistory(sparq::toUnsigned("begin_history", "n_recent", nRecent));
          },
          py::arg("n_recent"))
      .def("add_step", &addStep, py::arg("element"), py::arg("shares"))
      .def("attention_of_tokens", &attentionOfTokens, py::arg("query"),
           "Dense attention of the last tokens held.");

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

  py::class_<StreamSum>(m, "StreamSum")
      .def(py::init<std::int64_t, std::int64_t, const std::string &>(), py::arg("n_bytes"),
           py::kw_only(), py::arg("n_threads") = 0, py::arg("isa") = "auto")
      .def("run", &StreamSum::run, py::arg("offset"), py::arg("n_bytes"),
           py::call_guard<py::gil_scoped_release>());
}
