// SPDX-License-Identifier: Apache-2.0
#include "prompt_attention.hpp"

#include "arith/arith.hpp"
#include "call.hpp"
#include "dispatch.hpp"

#include <atomic>
#include <cmath>
#include <cstring>

namespace sparq {
namespace cpu {
namespace {

// Rows that go over the blocks together: their sums and one block stay in the second cache.
constexpr unsigned rowsTogether = 48;
static_assert(rowsTogether % promptRowGroup == 0, "no group of rows is cut");

// Rows of `width` floats, the last ones zero, from a tensor's rows of headDim numbers.
void widenRows(const Kernels &kernels, const Prompt &p, const PromptTensor &tensor,
               std::size_t batch, std::size_t head, std::size_t token, std::size_t count,
               std::size_t width, float *to) {
  for (std::size_t i = 0; i < count; ++i, to += width) {
    const char *const from = static_cast<const char *>(tensor.start) +
                             static_cast<std::ptrdiff_t>(batch) * tensor.batch +
                             static_cast<std::ptrdiff_t>(head) * tensor.head +
                             static_cast<std::ptrdiff_t>(token + i) * tensor.token;
    widenNumbers(kernels, p.type, from, p.headDim, to);
    std::fill(to + p.headDim, to + width, 0.0f);
  }
}

void writeRow(const Kernels &kernels, const Prompt &p, std::size_t batch, std::size_t head,
              std::size_t row, const float *from) {
  const std::size_t at = ((batch * p.nQueries + row) * p.nHeads + head) * p.headDim;
  if (p.type == Float::float32)
    std::memcpy(static_cast<float *>(p.output) + at, from, p.headDim * sizeof(float));
  else if (p.type == Float::float16)
    kernels.narrow(from, static_cast<Half *>(p.output) + at, p.headDim);
  else
    for (std::size_t c = 0; c < p.headDim; ++c)
      static_cast<std::uint16_t *>(p.output)[at + c] = narrowed(from[c]);
}

template <typename Number>
void check(bool right, const char *argument, const char *rule, Number got) {
  if (!right)
    throw Error(std::string("prompt_attention: ") + argument + " must " + rule + ", got " +
                std::to_string(got));
}

// One batch element and KV head: its keys and values by lanes of 32 bits.
struct Pair {
  std::int32_t *keys, *values;
  float *keySteps, *valueSteps;
  Pair(Carver &carve, std::size_t blocks, std::size_t lanes)
      : keys(carve.take<std::int32_t>(blocks * blockSize * lanes)),
        values(carve.take<std::int32_t>(blocks * blockSize * lanes)),
        keySteps(carve.take<float>(blocks * blockSize)),
        valueSteps(carve.take<float>(blocks * blockSize)) {}
};

// One thread's.
struct Own {
  float *rows, *sums, *maxima, *weightSums, *steps;
  std::int16_t *integers;
  std::int32_t *valueDots;
  Own(Carver &carve, std::size_t width)
      : rows(carve.take<float>(2 * blockSize * width)),
        sums(carve.take<float>(rowsTogether * width)), maxima(carve.take<float>(rowsTogether)),
        weightSums(carve.take<float>(rowsTogether)), steps(carve.take<float>(rowsTogether)),
        integers(carve.take<std::int16_t>(blockSize * width)),
        valueDots(carve.take<std::int32_t>(promptRowGroup * width)) {}
};

} // namespace

void attendPrompt(const Prompt &p, std::int64_t threads, const std::string &isa) {
  check(p.nKvHeads > 0 && p.nHeads % p.nKvHeads == 0, "n_heads", "be a multiple of n_kv_heads",
        p.nHeads);
  check(p.headDim > 0 && p.headDim % 8 == 0 && p.headDim <= 256, "head_dim",
        "be a multiple of 8 of at most 256", p.headDim);
  check(p.nQueries <= p.nKeys, "query", "have at most as many tokens as key", p.nQueries);
  check(std::isfinite(p.scale) && p.scale > 0.0f, "scale", "be positive and finite", p.scale);
  check(p.starts.empty() || p.starts.size() == p.batch, "starts",
        "have one entry per batch element", p.starts.size());
  for (const std::size_t start : p.starts)
    check(start <= p.nKeys, "starts", "be at most the number of keys", start);
  const Kernels &kernels = kernelsNamed("prompt_attention", isa);
  PoolLease pool(checkedThreads("prompt_attention", threads));
  const std::size_t width = roundUp(p.headDim, 16), lanes = p.integers ? width / 2 : width;
  const std::size_t groupSize = p.nHeads / p.nKvHeads;

  Carver measureShared(nullptr), measureOwn(nullptr);
  Pair(measureShared, roundUp(p.nKeys, blockSize) / blockSize, lanes);
  Own(measureOwn, width);
  char *const memory = pool->scratch(measureShared.used + pool->nThreads() * measureOwn.used);
  Carver shared(memory);
  const Pair pair(shared, roundUp(p.nKeys, blockSize) / blockSize, lanes);
  std::atomic<std::size_t> nextBlock{0}, nextPart{0};

  // Position 0 is the first token behind the padding.
  const auto pack = [&](const Own &own, std::size_t batch, std::size_t head, std::size_t block) {
    const std::size_t start = p.startOf(batch), begin = block * blockSize;
    const std::size_t count = std::min<std::size_t>(blockSize, p.nKeys - start - begin);
    float *const keys = own.rows, *const values = own.rows + blockSize * width;
    widenRows(kernels, p, p.key, batch, head, start + begin, count, width, keys);
    widenRows(kernels, p, p.value, batch, head, start + begin, count, width, values);
    kernels.promptBlock({p.integers, keys, values, static_cast<unsigned>(count),
                         static_cast<unsigned>(width), own.integers, pair.keys + begin * lanes,
                         pair.values + begin * lanes, pair.keySteps + begin,
                         pair.valueSteps + begin});
  };
  // `begin`: the first of the rows among all queries.
  const auto attend = [&](const Own &own, std::size_t batch, std::size_t head, std::size_t begin,
                          std::size_t rows, std::size_t position) {
    widenRows(kernels, p, p.query, batch, head, begin, rows, width, own.rows);
    const void *query = own.rows;
    if (p.integers) {
      std::memset(own.integers, 0, rowsTogether * width * sizeof(*own.integers));
      kernels.promptQuery(
          {own.rows, rows, static_cast<unsigned>(width), p.scale, own.integers, own.steps});
      query = own.integers;
    } else {
      std::fill(own.rows + rows * width, own.rows + rowsTogether * width, 0.0f);
      std::fill_n(own.steps, rows, p.scale);
    }
    kernels.promptAttention({p.integers, query, own.steps, static_cast<unsigned>(rows),
                             static_cast<unsigned>(width), position, p.window, pair.keys,
                             pair.values, pair.keySteps, pair.valueSteps, own.sums, own.maxima,
                             own.weightSums, own.valueDots});
    for (std::size_t row = 0; row < rows; ++row)
      writeRow(kernels, p, batch, head, begin + row, own.sums + row * width);
  };

  pool->run([&](unsigned thread) {
    Carver carve(memory + measureShared.used + thread * measureOwn.used);
    const Own own(carve, width);
    for (std::size_t i = 0; i < p.batch * p.nKvHeads; ++i) {
      const std::size_t batch = i / p.nKvHeads, kvHead = i % p.nKvHeads;
      const std::size_t nKeys = p.nKeys - p.startOf(batch);
      const std::size_t nRows = std::min(p.nQueries, nKeys), padding = p.nQueries - nRows;
      const std::size_t blocks = roundUp(nKeys, blockSize) / blockSize;
      const std::size_t parts = roundUp(nRows, rowsTogether) / rowsTogether;
      const std::size_t first = nKeys - nRows; // position of the first row
      const std::size_t unseen =
          p.window && first >= p.window ? (first + 1 - p.window) / blockSize : 0;
      for (std::size_t block; (block = unseen + nextBlock.fetch_add(1)) < blocks;)
        pack(own, batch, kvHead, block);
      pool->barrier();
      // The last rows see most positions: they come first, so that no thread is left with them.
      for (std::size_t work; (work = nextPart.fetch_add(1)) < parts * groupSize;) {
        const std::size_t row = (parts - 1 - work / groupSize) * rowsTogether;
        attend(own, batch, kvHead * groupSize + work % groupSize, padding + row,
               std::min<std::size_t>(rowsTogether, nRows - row), first + row);
      }
      pool->barrier();
      if (thread == 0) {
        nextBlock = 0;
        nextPart = 0;
      }
      pool->barrier();
    }
  });
}

} // namespace cpu
} // namespace sparq
