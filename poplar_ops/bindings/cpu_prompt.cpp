// SPDX-License-Identifier: Apache-2.0
//
// Prompt attention in the Python module sparq_ipu._cpu: arrays are given by addresses and strides,
// which the caller takes from NumPy or PyTorch.
#include "cpu.hpp"
#include "dispatch.hpp"
#include "kv_cache.hpp"
#include "thread_pool.hpp"

#include <pybind11/stl.h>

#include <tuple>

namespace py = pybind11;
using namespace py::literals;
using namespace sparq::cpu;

namespace {

// Address, and bytes from one batch element, head and token to the next.
using TensorAt = std::tuple<std::uintptr_t, std::ptrdiff_t, std::ptrdiff_t, std::ptrdiff_t>;

// batch, n_heads, n_kv_heads, n_queries, n_keys, head_dim
using Sizes =
    std::tuple<std::size_t, std::size_t, std::size_t, std::size_t, std::size_t, std::size_t>;

PromptRows rowsAt(const TensorAt &at, std::size_t element, std::size_t token) {
  const auto &[address, batchStep, headStep, tokenStep] = at;
  return {reinterpret_cast<const char *>(address) +
              static_cast<std::ptrdiff_t>(element) * batchStep +
              static_cast<std::ptrdiff_t>(token) * tokenStep,
          headStep, tokenStep};
}

void promptAttention(const std::string &dtype, const TensorAt &query, const TensorAt &key,
                     const TensorAt &value, const Sizes &sizes, bool integers, float scale,
                     std::size_t window, float blocks, std::size_t blocksFrom,
                     const std::vector<std::size_t> &starts, std::uintptr_t output,
                     std::int64_t nThreads, const std::string &isa) {
  const auto &[batch, nHeads, nKvHeads, nQueries, nKeys, headDim] = sizes;
  const Float type = floatNamed(dtype);
  if (!starts.empty() && starts.size() != batch)
    throw sparq::Error("prompt_attention: starts must have one entry per batch element, got " +
                       std::to_string(starts.size()));
  std::vector<PromptText> texts;
  for (std::size_t b = 0; b < batch; ++b) {
    const std::size_t start = starts.empty() ? 0 : std::min(starts[b], nKeys), n = nKeys - start;
    const std::size_t rows = std::min(nQueries, n), padding = nQueries - rows;
    char *const to = reinterpret_cast<char *>(output) +
                     (b * nQueries + padding) * nHeads * headDim * bytesOf(type);
    texts.push_back(
        {rowsAt(query, b, padding), rowsAt(key, b, start), rowsAt(value, b, start), rows, n, to});
  }
  const Kernels &kernels = kernelsNamed("prompt_attention", isa);
  const unsigned threads = checkedThreads("prompt_attention", nThreads);
  py::gil_scoped_release release;
  attendPrompt({type, type, nHeads, nKvHeads, headDim, integers, scale, window, blocks, blocksFrom},
               texts, kernels, threads);
}

// Tokens of a tensor, by their number: batch elements one after another.
using TokenRange = std::pair<std::size_t, std::size_t>; // first, count

void promptAttentionOfCache(const KVCache &cache, const std::string &dtype, const TensorAt &query,
                            std::size_t nHeads, std::size_t nQueries,
                            const std::vector<TokenRange> &tokens, bool integers, float scale,
                            std::size_t window, float blocks, std::size_t blocksFrom,
                            std::uintptr_t output) {
  const Float type = floatNamed(dtype);
  std::vector<PromptText> texts;
  for (const auto &[first, count] : tokens) {
    char *const to =
        reinterpret_cast<char *>(output) + first * nHeads * cache.headDim * bytesOf(type);
    texts.push_back({rowsAt(query, first / nQueries, first % nQueries), {}, {}, count, 0, to});
  }
  py::gil_scoped_release release;
  cache.attendPrompt({type, type, nHeads, 0, 0, integers, scale, window, blocks, blocksFrom},
                     std::move(texts));
}

} // namespace

void bindPrompt(py::module_ &m) {
  m.def("prompt_attention", &promptAttention, "dtype"_a, "query"_a, "key"_a, "value"_a, "sizes"_a,
        py::kw_only(), "integers"_a, "scale"_a, "window"_a, "blocks"_a, "blocks_from"_a, "starts"_a,
        "output"_a, "n_threads"_a = 0, "isa"_a = "auto",
        "Causal attention of a prompt. sizes: batch, n_heads, n_kv_heads, n_queries, n_keys, "
        "head_dim.");
  m.def("prompt_attention_of_cache", &promptAttentionOfCache, "cache"_a, "dtype"_a, "query"_a,
        "n_heads"_a, "n_queries"_a, "tokens"_a, py::kw_only(), "integers"_a, "scale"_a, "window"_a,
        "blocks"_a, "blocks_from"_a, "output"_a,
        "The same of the last positions of each batch element of a cache, whose queries are "
        "`tokens`: first, count.");
}
