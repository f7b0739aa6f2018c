// SPDX-License-Identifier: Apache-2.0
//
// Prompt attention in the Python module sparq_ipu._cpu: arrays are given by addresses and strides,
// which the caller takes from NumPy or PyTorch.
#include "cpu.hpp"
#include "prompt_attention.hpp"

#include <pybind11/stl.h>

#include <tuple>

namespace py = pybind11;
using namespace sparq::cpu;

namespace {

// Address, and bytes from one batch element, head and token to the next.
using TensorAt = std::tuple<std::uintptr_t, std::ptrdiff_t, std::ptrdiff_t, std::ptrdiff_t>;

// batch, n_heads, n_kv_heads, n_queries, n_keys, head_dim
using Sizes =
    std::tuple<std::size_t, std::size_t, std::size_t, std::size_t, std::size_t, std::size_t>;

PromptTensor tensorAt(const TensorAt &at) {
  const auto &[address, batch, head, token] = at;
  return {reinterpret_cast<const void *>(address), batch, head, token};
}

void promptAttention(const std::string &type, const TensorAt &query, const TensorAt &key,
                     const TensorAt &value, const Sizes &sizes, bool integers, float scale,
                     std::size_t window, const std::vector<std::size_t> &starts,
                     std::uintptr_t output, std::int64_t nThreads, const std::string &isa) {
  const auto &[batch, nHeads, nKvHeads, nQueries, nKeys, headDim] = sizes;
  const Prompt prompt{floatNamed(type), tensorAt(query), tensorAt(key),
                      tensorAt(value),  batch,           nHeads,
                      nKvHeads,         nQueries,        nKeys,
                      headDim,          integers,        scale,
                      window,           starts,          reinterpret_cast<void *>(output)};
  py::gil_scoped_release release;
  attendPrompt(prompt, nThreads, isa);
}

} // namespace

void bindPrompt(py::module_ &m) {
  m.def("prompt_attention", &promptAttention, py::arg("dtype"), py::arg("query"), py::arg("key"),
        py::arg("value"), py::arg("sizes"), py::kw_only(), py::arg("integers"), py::arg("scale"),
        py::arg("window"), py::arg("starts"), py::arg("output"), py::arg("n_threads") = 0,
        py::arg("isa") = "auto",
        "Causal attention of a prompt. sizes: batch, n_heads, n_kv_heads, n_queries, n_keys, "
        "head_dim.");
}
