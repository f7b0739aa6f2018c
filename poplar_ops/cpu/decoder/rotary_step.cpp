// SPDX-License-Identifier: Apache-2.0
#include "rotary_step.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace sparq {
namespace cpu {
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

// Queries, keys and values of all batch elements as fp16 numbers; false where it can not hold them.
bool toHalves(const KVCache &cache, const RotaryStep &step, Rows32 &rows, Half *to) {
  const Rotary &rotary = step.rotary;
  const std::size_t n = cache.headDim, dim = rotary.dim, half = dim / 2;
  const std::size_t turned = rotary.nHeads + cache.nKvHeads, all = turned + cache.nKvHeads;
  Rows32 angles(cache.kernels, rotary.type, dim);
  std::vector<float> memory(4 * n);
  float *const cos = memory.data(), *const sin = cos + n, *const x = sin + n, *const other = x + n;
  for (std::size_t b = 0; b < cache.batch; ++b) {
    if (b < rotary.rows) {
      angles.load(rotary.cos, b, cos);
      angles.load(rotary.sin, b, sin);
    }
    for (std::size_t h = 0; h < all; ++h, to += n) {
      rows.load(step.products, b * all + h, x);
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

} // namespace

std::vector<std::int64_t> attendRotary(KVCache &cache, const RotaryStep &step,
                                       const SparqSettings *settings) {
  std::vector<std::int64_t> lengths = cache.lengths();
  for (std::int64_t &length : lengths)
    ++length;

  const std::size_t n = cache.headDim, nHeads = step.rotary.nHeads;
  const std::size_t nRows = nHeads + 2 * cache.nKvHeads;
  std::vector<Half> halves(cache.batch * nRows * n);
  Rows32 rows(cache.kernels, step.type, n);
  if (!toHalves(cache, step, rows, halves.data()))
    return {};

  constexpr std::ptrdiff_t bytes = sizeof(Half);
  const auto head = static_cast<std::ptrdiff_t>(n) * bytes;
  const auto element = static_cast<std::ptrdiff_t>(nRows) * head;
  const auto rowsFrom = [&](std::size_t row) {
    return reinterpret_cast<const char *>(halves.data() + row * n);
  };
  const Tokens keys{rowsFrom(nHeads), {element, head, head, bytes}},
      values{rowsFrom(nHeads + cache.nKvHeads), {element, head, head, bytes}};
  const std::vector<std::int64_t> ones(cache.batch, 1);
  cache.append(keys, values, 1, ones.data());

  std::vector<Half> output(cache.batch * nHeads * n);
  const Query query{rowsFrom(0), {element, head, bytes}};
  cache.attention(query, static_cast<std::int64_t>(nHeads), settings, output.data());
  for (std::size_t row = 0; row < cache.batch * nHeads; ++row)
    rows.store(output.data() + row * n, step.output, row);
  return lengths;
}

} // namespace cpu
} // namespace sparq
