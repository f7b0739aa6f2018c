// SPDX-License-Identifier: Apache-2.0
//
// sparq_ipu._cpu.KVCache: conversion only. python/sparq_ipu/backends/cpu.py says what the arguments
// mean.
#include "convert.hpp"
#include "cpu.hpp"
#include "kv_cache.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <optional>

namespace py = pybind11;
using namespace py::literals;
using namespace sparq::cpu;
using sparq::CacheSpec;
using sparq::Error;
using sparq::SparqSettings;
using sparq::WindowSettings;

namespace {

// fp16 in this machine's byte order.
py::dtype half() { return py::dtype(23); } // NPY_HALF
bool isHalf(const py::array &array) {
  const py::dtype type = array.dtype();
  return type.num() == 23 && type.byteorder() == '=';
}

using Shape = std::initializer_list<std::int64_t>; // -1: any number

// Throws Error unless it is an fp16 array of that shape.
void checkHalf(const char *op, const char *argument, const py::array &array, const char *axes,
               const Shape &shape) {
  if (!isHalf(array) || array.ndim() != static_cast<py::ssize_t>(shape.size()))
    throw Error(std::string(op) + ": " + argument + " must be float16 with " +
                std::to_string(shape.size()) + " dimensions, got " +
                py::str(array.dtype()).cast<std::string>() + " with " +
                std::to_string(array.ndim()));
  py::ssize_t axis = 0;
  for (const std::int64_t n : shape)
    if (const std::int64_t got = array.shape(axis++); n >= 0 && got != n)
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

void checkTokens(const char *argument, const KVCache &cache, const py::array &tokens,
                 std::int64_t nTokens) {
  checkHalf("append", argument, tokens, "(batch, n_kv_heads, n_tokens, head_dim)",
            {static_cast<std::int64_t>(cache.batch), static_cast<std::int64_t>(cache.nKvHeads),
             nTokens, static_cast<std::int64_t>(cache.headDim)});
}

Tokens tokensOf(const py::array &a) {
  return {static_cast<const char *>(a.data()),
          {a.strides(0), a.strides(1), a.strides(2), a.strides(3)}};
}

void append(KVCache &cache, const py::array &keys, const py::array &values,
            const std::optional<Integers> &lengths) {
  checkTokens("key", cache, keys, -1);
  const std::int64_t nTokens = keys.shape(2);
  checkTokens("value", cache, values, nTokens);
  std::vector<std::int64_t> counts(cache.batch, nTokens);
  if (lengths) {
    const std::int64_t *const data = perElement("append", "lengths", cache, *lengths);
    counts.assign(data, data + cache.batch);
  }
  const Tokens keyTokens = tokensOf(keys), valueTokens = tokensOf(values);
  py::gil_scoped_release release;
  cache.append(keyTokens, valueTokens, nTokens, counts.data());
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
  py::array key(half(), shape), value(half(), shape);
  Half *const keys = static_cast<Half *>(key.mutable_data());
  Half *const values = static_cast<Half *>(value.mutable_data());
  {
    py::gil_scoped_release release;
    cache.read(keys, values, start, stop - start);
  }
  return py::make_tuple(key, value);
}

// Queries (batch, n_heads, head_dim) of one token, or (batch, n_heads, n_tokens, head_dim).
Query queryOf(const char *op, const KVCache &cache, const py::array &array, bool several) {
  const auto batch = static_cast<std::int64_t>(cache.batch),
             headDim = static_cast<std::int64_t>(cache.headDim);
  if (!several)
    checkHalf(op, "query", array, "(batch, n_heads, head_dim)", {batch, -1, headDim});
  else
    checkHalf(op, "query", array, "(batch, n_heads, n_tokens, head_dim)", {batch, -1, -1, headDim});
  Query query{static_cast<const char *>(array.data()),
              {array.strides(0), array.strides(1), array.strides(array.ndim() - 1)}};
  if (several) {
    query.tokenStride = array.strides(2);
    query.nTokens = static_cast<std::size_t>(array.shape(2));
  }
  return query;
}

// Of several tokens the kernels have the heads of a KV head together, in (batch, nKvHeads, nTokens,
// nHeads / nKvHeads, headDim).
py::array attendFromTokens(const KVCache &cache, const py::array &query, std::size_t window) {
  const Query view = queryOf("dense_attention", cache, query, true);
  const std::int64_t nHeads = query.shape(1);
  const auto nKvHeads = static_cast<py::ssize_t>(cache.nKvHeads);
  py::array output(half(),
                   {query.shape(0), nKvHeads, query.shape(2), nHeads / nKvHeads, query.shape(3)});
  Half *const to = static_cast<Half *>(output.mutable_data());
  {
    py::gil_scoped_release release;
    cache.attention(view, nHeads, nullptr, to, window);
  }
  return output.attr("swapaxes")(2, 3).attr("reshape")(query.attr("shape"));
}

py::array attention(KVCache &cache, const py::array &array, const py::object &settings) {
  std::optional<SparqSettings> sparq;
  std::optional<WindowSettings> window;
  try {
    if (!settings.is_none() && py::hasattr(settings, "n_recent"))
      window = settings.cast<WindowSettings>();
    else if (!settings.is_none())
      sparq = settings.cast<SparqSettings>();
  } catch (const py::cast_error &) {
    throw py::type_error("attend: settings must be SparqSettings, WindowSettings or None");
  }
  if (!sparq && array.ndim() == 4)
    return attendFromTokens(cache, array, window ? window->topK : 0);
  const Query view = queryOf(window  ? "window_attention"
                             : sparq ? "sparq_attention"
                                     : "dense_attention",
                             cache, array, false);
  py::array output(half(), {array.shape(0), array.shape(1), array.shape(2)});
  const std::int64_t nHeads = array.shape(1);
  Half *const to = static_cast<Half *>(output.mutable_data());
  py::gil_scoped_release release;
  if (window)
    cache.windowAttention(view, nHeads, *window, to);
  else
    cache.attention(view, nHeads, sparq ? &*sparq : nullptr, to);
  return output;
}

void observe(KVCache &cache, const py::array &query, const WindowSettings &settings) {
  const Query view = queryOf("observe", cache, query, true);
  const std::int64_t nHeads = query.shape(1);
  py::gil_scoped_release release;
  cache.observe(view, nHeads, settings);
}

// The shares of the steps that a batch element's history remembers, the oldest first.
std::vector<py::array> historyOf(const KVCache &cache, std::size_t element) {
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

} // namespace

void bindCache(py::module_ &m) {
  py::class_<KVCache>(m, "KVCache")
      .def(py::init<const CacheSpec &, std::int64_t, const std::string &>(), "spec"_a,
           py::kw_only(), "n_threads"_a = 0, "isa"_a = "auto")
      .def_property_readonly("lengths", &KVCache::lengths)
      .def_property_readonly("n_threads", [](const KVCache &cache) { return cache.nThreads; })
      .def_property_readonly("isa", [](const KVCache &cache) { return cache.kernels.name; })
      .def_property_readonly(
          "key_index_bytes",
          [](const KVCache &cache) { return cache.nPairs() * cache.keyIndex.pairBytes(); })
      .def_property_readonly("row_bytes", &KVCache::bytesOfRows)
      .def("rows", &KVCache::rowsOf, "index"_a)
      .def("append", &append, "key"_a, "value"_a, "lengths"_a = py::none())
      .def("read", &readPositions, "start"_a, "stop"_a)
      .def(
          "truncate",
          [](KVCache &cache, const Integers &lengths) {
            const std::int64_t *data = perElement("truncate", "lengths", cache, lengths);
            py::gil_scoped_release release;
            cache.truncate(data);
          },
          "lengths"_a)
      .def("reset", &KVCache::reset, py::call_guard<py::gil_scoped_release>())
      .def(
          "reorder",
          [](KVCache &cache, const Integers &index) {
            const std::int64_t *data = perElement("reorder", "index", cache, index);
            py::gil_scoped_release release;
            cache.reorder(data);
          },
          "index"_a)
      .def("attend", &attention, "query"_a, "settings"_a = py::none(),
           "SparQ or window attention, or dense attention where settings is None.")
      .def("observe", &observe, "query"_a, "settings"_a)
      .def_property_readonly("n_recent", &KVCache::nRecent)
      .def("history", &historyOf, "element"_a)
      .def(
          "begin_history",
          [](KVCache &cache, std::int64_t nRecent) {
            cache.beginHistory(sparq::toUnsigned("begin_history", "n_recent", nRecent));
          },
          "n_recent"_a)
      .def("add_step", &addStep, "element"_a, "shares"_a);
}
