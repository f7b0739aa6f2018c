// SPDX-License-Identifier: Apache-2.0
//
// PodSession for Python: conversion only.
#include "pod.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace sparq {

PyPodSession::PyPodSession(const Shape &shape, const Programs &programs,
                           const DeviceOptions &options, bool stacked)
    : shape_(shape) {
  const py::gil_scoped_release release;
  session_ = std::make_unique<PodSession>(shape, programs, options, stacked);
}

void PyPodSession::write(const py::array &key, const py::array &value,
                         const std::vector<std::uint32_t> &counts, unsigned layer) {
  const py::ssize_t n = key.ndim() == 4 ? key.shape(2) : 0;
  const std::vector<py::ssize_t> expected{shape_.batch, shape_.nKvHeads, n, shape_.headDim};
  expectShape(key, expected, "append", "key");
  expectShape(value, expected, "append", "value");
  const std::uint16_t *k = halves(key, "append", "key"), *v = halves(value, "append", "value");
  const py::gil_scoped_release release;
  const std::lock_guard<std::mutex> lock(mutex_);
  session_->write(k, v, static_cast<unsigned>(n), counts, layer);
}

void PyPodSession::append(const py::array &key, const py::array &value,
                          const std::vector<std::uint32_t> &active, unsigned layer) {
  const std::vector<py::ssize_t> expected{shape_.batch, shape_.nKvHeads, 1, shape_.headDim};
  expectShape(key, expected, "append", "key");
  expectShape(value, expected, "append", "value");
  const std::uint16_t *k = halves(key, "append", "key"), *v = halves(value, "append", "value");
  const py::gil_scoped_release release;
  const std::lock_guard<std::mutex> lock(mutex_);
  session_->append(k, v, active, layer);
}

KeyAndValue PyPodSession::read(unsigned nTokens, unsigned layer) {
  const std::vector<py::ssize_t> shape{shape_.batch, shape_.nKvHeads, nTokens, shape_.headDim};
  py::array key = newHalves(shape), value = newHalves(shape);
  std::uint16_t *k = halves(key, "read", "key", true), *v = halves(value, "read", "value", true);
  {
    const py::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(mutex_);
    session_->read(k, v, nTokens, layer);
  }
  return py::make_tuple(key, value);
}

py::array PyPodSession::run(std::int64_t index, const py::array &query, const unsigned *layer) {
  if (index < 0 || index >= static_cast<std::int64_t>(session_->nAttention()))
    throw Error("attention: index must be in [0, " + std::to_string(session_->nAttention()) +
                "), got " + std::to_string(index));
  const auto which = static_cast<std::size_t>(index);
  const char *const op = session_->kernel(which).op;
  const std::vector<py::ssize_t> shape{shape_.batch, shape_.nHeads, shape_.headDim};
  expectShape(query, shape, op, "query");
  py::array output = newHalves(shape);
  const std::uint16_t *q = halves(query, op, "query");
  std::uint16_t *out = halves(output, op, "output", true);
  {
    const py::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (layer != nullptr)
      session_->attention(which, q, out, *layer);
    else
      session_->attendAll(which, q, out);
  }
  return output;
}

void PyPodSession::reset(unsigned layer) {
  const py::gil_scoped_release release;
  const std::lock_guard<std::mutex> lock(mutex_);
  session_->reset(layer);
}

std::vector<std::uint32_t> PyPodSession::lengths(unsigned layer) {
  const py::gil_scoped_release release;
  const std::lock_guard<std::mutex> lock(mutex_);
  return session_->lengths(layer);
}

void bindPod(py::module_ &module) {
  py::class_<PyPodSession, EngineOwner>(module, "PodSession")
      .def(py::init([](const CacheSpec &cache, unsigned nHeads,
                       const std::vector<Attention> &attention,
                       const std::optional<DeviceOptions> &given, const std::string &device,
                       unsigned nLayers, bool append, bool stacked) {
             DeviceOptions options = given.value_or(DeviceOptions{});
             options.device = device;
             Programs programs;
             programs.attention = attention;
             programs.append = append;
             programs.nLayers = nLayers;
             programs.tiers = options.tiers;
             return std::make_unique<PyPodSession>(Shape(cache, nHeads), programs, options,
                                                   stacked);
           }),
           "cache"_a, "n_heads"_a, py::kw_only(), "attention"_a = py::tuple(),
           "options"_a = py::none(), "device"_a = "emulator", "n_layers"_a = 1u, "append"_a = true,
           "stacked"_a = false)
      .def_property_readonly("n_layers", [](PyPodSession &s) { return s.session().nLayers(); })
      .def_property_readonly("n_ipus", [](PyPodSession &s) { return s.session().nIpus(); })
      .def_property_readonly(
          "streaming_memory_bytes",
          [](PyPodSession &s) {
            std::vector<std::uint64_t> bytes;
            for (unsigned ipu = 0; ipu != s.session().nIpus(); ++ipu)
              bytes.push_back(s.session().streamingBytes(ipu));
            return bytes;
          },
          "Of the cache, on each IPU.")
      .def_property_readonly("extended_memory",
                             [](PyPodSession &s) { return s.session().extendedMemory(); })
      .def("lengths", &PyPodSession::lengths, "layer"_a = 0u)
      .def("write", &PyPodSession::write, "key"_a, "value"_a, "counts"_a, "layer"_a = 0u)
      .def("append", &PyPodSession::append, "key"_a, "value"_a, "active"_a, "layer"_a = 0u)
      .def("read", &PyPodSession::read, "n_tokens"_a, "layer"_a = 0u)
      .def("reset", &PyPodSession::reset, "layer"_a = 0u)
      .def(
          "attention",
          [](PyPodSession &s, std::int64_t index, const py::array &query, unsigned layer) {
            return s.run(index, query, &layer);
          },
          "index"_a, "query"_a, "layer"_a = 0u)
      .def(
          "attend_all",
          [](PyPodSession &s, std::int64_t index, const py::array &query) {
            return s.run(index, query, nullptr);
          },
          "index"_a, "query"_a,
          "All layers in one launch, each with the output of the one before as its query.");
}

} // namespace sparq
