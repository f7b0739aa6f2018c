// SPDX-License-Identifier: Apache-2.0
//
// What a decoder does with each row between its products, of bfloat16 numbers. Every operation is
// rounded as PyTorch rounds it.
#pragma once

#include "kernels/vectors.hpp"

// As ../floats.hpp, whose functions a kernel's file must not compile.
inline float fromBfloat16(std::uint16_t bits) {
  return bitcast<float>(static_cast<unsigned>(bits) << 16);
}
inline std::uint16_t toBfloat16(float x) {
  const auto bits = bitcast<unsigned>(x);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// PyTorch's sum of a row: four vectors side by side, and sixteen of each at a time, so that no sum
// has many.
template <unsigned lanes> inline float sumOfSquares(const std::uint16_t *x, std::size_t n) {
  constexpr unsigned side = 4, levels = 4, levelPower = 4, wide = side * lanes;
  constexpr std::size_t levelStep = 1 << levelPower;
  float sums[levels][wide] = {};
  const auto add = [&](std::size_t at, unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      const float value = fromBfloat16(x[at + i]);
      sums[0][i] += value * value;
    }
  };
  const std::size_t nVectors = n / lanes, nWide = nVectors / side;
  std::size_t i = 0;
  while (i + levelStep <= nWide) {
    for (std::size_t j = 0; j < levelStep; ++j, ++i)
      add(i * wide, wide);
    for (unsigned level = 1; level < levels; ++level) {
      for (unsigned k = 0; k < wide; ++k) {
        sums[level][k] += sums[level - 1][k];
        sums[level - 1][k] = 0;
      }
      if (i & ((levelStep - 1) << (level * levelPower)))
        break;
    }
  }
  for (; i < nWide; ++i)
    add(i * wide, wide);
  for (unsigned level = 1; level < levels; ++level)
    for (unsigned k = 0; k < wide; ++k)
      sums[0][k] += sums[level][k];
  for (std::size_t vector = nWide * side; vector < nVectors; ++vector)
    add(vector * lanes, lanes);
  for (unsigned k = lanes; k < wide; ++k)
    sums[0][k % lanes] += sums[0][k];
  float sum = 0;
  for (std::size_t at = nVectors * lanes; at < n; ++at) {
    const float value = fromBfloat16(x[at]);
    sum += value * value;
  }
  for (unsigned k = 0; k < lanes; ++k)
    sum += sums[0][k];
  return sum;
}

inline float meanOfSquares(std::size_t n, unsigned lanes, const std::uint16_t *x) {
  const float sum = lanes == 16  ? sumOfSquares<16>(x, n)
                    : lanes == 8 ? sumOfSquares<8>(x, n)
                                 : sumOfSquares<4>(x, n);
  return sum / static_cast<float>(n);
}

inline void rmsNorm(const RmsNorm &norm, const std::uint16_t *weight, std::size_t n,
                    const std::uint16_t *from, std::uint16_t *to) {
  const float mean = meanOfSquares(n, norm.lanes, from);
  const float factor = 1.f / __builtin_sqrtf(mean + norm.epsilon), offset = norm.offset;
  if (norm.roundsTwice)
    for (std::size_t i = 0; i < n; ++i)
      to[i] = toBfloat16((fromBfloat16(weight[i]) + offset) *
                         fromBfloat16(toBfloat16(fromBfloat16(from[i]) * factor)));
  else
    for (std::size_t i = 0; i < n; ++i)
      to[i] = toBfloat16((fromBfloat16(weight[i]) + offset) * (fromBfloat16(from[i]) * factor));
}

inline void addRow(std::size_t n, const std::uint16_t *x, std::uint16_t *sum) {
  for (std::size_t i = 0; i < n; ++i)
    sum[i] = toBfloat16(fromBfloat16(sum[i]) + fromBfloat16(x[i]));
}

inline void scaleRow(std::size_t n, float factor, std::uint16_t *x) {
  for (std::size_t i = 0; i < n; ++i)
    x[i] = toBfloat16(fromBfloat16(x[i]) * factor);
}

inline void gateRow(std::size_t n, const std::uint16_t *activation, const std::uint16_t *gates,
                    std::uint16_t *to) {
  const std::uint16_t *const up = gates + n;
  for (std::size_t i = 0; i < n; ++i) // apart, for the rest is done by vectors
    to[i] = activation[gates[i]];
  for (std::size_t i = 0; i < n; ++i)
    to[i] = toBfloat16(fromBfloat16(to[i]) * fromBfloat16(up[i]));
}

template <class Angle, class Round>
inline void turnHeads(const TurnHeads &a, Angle angle, Round rounded) {
  const std::size_t half = a.dim / 2;
  std::uint16_t *x = a.heads;
  for (std::size_t head = 0; head < a.nHeads; ++head, x += a.headDim)
    for (std::size_t i = 0; i < half; ++i) {
      const float low = fromBfloat16(x[i]), high = fromBfloat16(x[i + half]);
      x[i] = toBfloat16(rounded(low * angle(a.cos, i)) + rounded(high * angle(a.sin, i)));
      x[i + half] = toBfloat16(rounded(high * angle(a.cos, i + half)) +
                               rounded(low * angle(a.sin, i + half)));
    }
}

inline void turnHeads(const TurnHeads &a) {
  if (a.isWide)
    turnHeads(
        a, [](const void *at, std::size_t i) { return static_cast<const float *>(at)[i]; },
        [](float product) { return product; });
  else
    turnHeads(
        a,
        [](const void *at, std::size_t i) {
          return fromBfloat16(static_cast<const std::uint16_t *>(at)[i]);
        },
        [](float product) { return fromBfloat16(toBfloat16(product)); });
}
