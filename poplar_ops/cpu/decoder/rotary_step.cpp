// SPDX-License-Identifier: Apache-2.0
#include "decoder_step.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace sparq::cpu {
namespace {

// From here on a number rounds to an infinity of fp16.
constexpr float beyondHalf = 65520.f;

// Rows of headDim numbers, in fp32 while they are computed with.
class Rows32 {
public:
  Rows32(const Kernels &kernelsIn, Float typeIn, std::size_t headDim)
      : kernels(kernelsIn), type(typeIn), n(headDim), halves(headDim), wide(headDim) {}

  // Row number `row` of an array of the type.
  void load(const void *from, std::size_t row, float *to) const {
    const std::size_t size = type == Float::float32 ? sizeof(float) : sizeof(Half);
    widenNumbers(kernels, type, static_cast<const char *>(from) + row * n * size, n, to);
  }

  void store(const Half *from, void *to, std::size_t row) {
    if (type == Float::float16) {
      std::memcpy(static_cast<Half *>(to) + row * n, from, n * sizeof(Half));
      return;
    }
    if (type == Float::float32) {
      kernels.widen(from, static_cast<float *>(to) + row * n, n);
      return;
    }
    kernels.widen(from, wide.data(), n);
    auto *const bits = static_cast<std::uint16_t *>(to) + row * n;
    for (std::size_t i = 0; i < n; ++i)
      bits[i] = narrowed(wide[i]);
  }

  // Rounds to the type; false where that is fp16 and can not hold them.
  bool round(float *x) {
    if (type == Float::float16) {
      if (!toHalf(x, halves.data()))
        return false;
      kernels.widen(halves.data(), x, n);
    } else if (type == Float::bfloat16) {
      for (std::size_t i = 0; i < n; ++i)
        x[i] = widened(narrowed(x[i]));
    }
    return true;
  }

  // Rounds to fp16; false where it can not hold them.
  bool toHalf(const float *x, Half *to) const {
    bool all = true;
    for (std::size_t i = 0; i < n; ++i)
      all = all & (std::fabs(x[i]) < beyondHalf);
    if (all)
      kernels.narrow(x, to, n);
    return all;
  }

private:
  const Kernels &kernels;
  const Float type;
  const std::size_t n;
  std::vector<Half> halves;
  std::vector<float> wide;
};

// Queries, keys and values of some rows as fp16 numbers; false where it can not hold them.
bool toHalves(const KVCache &cache, const RotaryStep &step, std::size_t firstRow, std::size_t nRows,
              Rows32 &rows, Half *to) {
  const Rotary &rotary = step.rotary;
  const std::size_t n = cache.headDim, dim = rotary.dim, half = dim / 2;
  const std::size_t turned = rotary.nHeads + cache.nKvHeads, all = turned + cache.nKvHeads;
  Rows32 angles(cache.kernels, rotary.type, dim);
  std::vector<float> memory(4 * n);
  float *const cos = memory.data(), *const sin = cos + n, *const x = sin + n, *const other = x + n;
  for (std::size_t row = firstRow; row < firstRow + nRows; ++row) {
    if (rotary.rows > 1 || row == firstRow) {
      angles.load(rotary.cos, rotary.rows > 1 ? row : 0, cos);
      angles.load(rotary.sin, rotary.rows > 1 ? row : 0, sin);
    }
    for (std::size_t h = 0; h < all; ++h, to += n) {
      rows.load(step.products, row * all + h, x);
      if (h < turned && dim > 0) {
        for (std::size_t i = 0; i < half; ++i) {
          other[i] = x[i + half] * sin[i];
          other[i + half] = x[i] * sin[i + half];
        }
        for (std::size_t i = 0; i < dim; ++i)
          x[i] *= cos[i];
        if (!angles.round(other) || !angles.round(x))
          return false;
        for (std::size_t i = 0; i < dim; ++i)
          x[i] += other[i];
        if (!rows.round(x))
          return false;
      }
      if (h < rotary.nHeads && rotary.factor != 1)
        for (std::size_t i = 0; i < n; ++i)
          x[i] *= rotary.factor;
      if (!rows.toHalf(x, to))
        return false;
    }
  }
  return true;
}

// Rows from `firstRow` on. Returns false, and nothing has happened, where fp16 can not hold them.
bool attendWave(const Wave &wave, const RotaryStep &step, std::size_t firstRow) {
  KVCache &cache = *wave.cache;
  const std::size_t n = cache.headDim, nHeads = step.rotary.nHeads,
                    groupSize = nHeads / cache.nKvHeads;
  const std::size_t perRow = nHeads + 2 * cache.nKvHeads;
  std::vector<Half> halves(wave.nRows() * perRow * n);
  Rows32 rows(cache.kernels, step.type, n);
  if (!toHalves(cache, step, firstRow, wave.nRows(), rows, halves.data()))
    return false;

  constexpr std::ptrdiff_t bytes = sizeof(Half);
  const auto head = static_cast<std::ptrdiff_t>(n) * bytes;
  const auto element = static_cast<std::ptrdiff_t>(perRow) * head;
  const auto token = static_cast<std::ptrdiff_t>(cache.batch) * element;
  const auto rowsFrom = [&](std::size_t row) {
    return reinterpret_cast<const char *>(halves.data() + row * n);
  };
  const Tokens keys{rowsFrom(nHeads), {element, head, token, bytes}},
      values{rowsFrom(nHeads + cache.nKvHeads), {element, head, token, bytes}};
  const auto nTokens = static_cast<std::int64_t>(wave.nTokens);
  const std::vector<std::int64_t> counts(cache.batch, nTokens);
  cache.append(keys, values, nTokens, counts.data());

  std::vector<Half> output(wave.nRows() * nHeads * n); // (batch, nKvHeads, nTokens, groupSize, n)
  const Query query{rowsFrom(0), {element, head, bytes}, token, wave.nTokens};
  cache.attention(query, static_cast<std::int64_t>(nHeads), wave.settings, output.data(),
                  wave.window);
  const Half *from = output.data();
  for (std::size_t pair = 0; pair < cache.nPairs(); ++pair)
    for (std::size_t t = 0; t < wave.nTokens; ++t)
      for (std::size_t h = 0; h < groupSize; ++h, from += n) {
        const std::size_t row = firstRow + t * cache.batch + pair / cache.nKvHeads;
        rows.store(from, step.output, row * nHeads + pair % cache.nKvHeads * groupSize + h);
      }
  return true;
}

} // namespace

std::vector<std::int64_t> attendRotary(const std::vector<Wave> &waves, const RotaryStep &step) {
  std::vector<std::int64_t> lengths;
  std::vector<std::vector<std::int64_t>> held;
  const auto takeBack = [&] {
    for (std::size_t i = held.size(); i-- > 0;)
      waves[i].cache->truncate(held[i].data());
    lengths.clear();
  };
  try {
    for (const Wave &wave : waves) {
      const std::size_t firstRow = lengths.size();
      const std::vector<std::int64_t> before = wave.cache->lengths();
      held.push_back(before);
      if (!attendWave(wave, step, firstRow)) {
        takeBack();
        return lengths;
      }
      for (std::size_t t = 1; t <= wave.nTokens; ++t)
        for (const std::int64_t length : before)
          lengths.push_back(length + static_cast<std::int64_t>(t));
    }
  } catch (...) {
    takeBack();
    throw;
  }
  return lengths;
}

} // namespace sparq::cpu
