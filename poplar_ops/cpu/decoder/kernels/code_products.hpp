// SPDX-License-Identifier: Apache-2.0
//
// Dot products of rows of numbers with rows of codes of 8 bits, as a linear layer has them.
#pragma once

#include "kernels/vectors.hpp"

// Sums of a dot product side by side.
constexpr unsigned codeLanes = 16;

// Of R rows with four rows of codes. Each code becomes fp32 once. The products are exact: a number
// of bfloat16 has 8 bits, a code too.
template <unsigned R>
inline void codeProductsOf(const CodeProducts &a, unsigned row, unsigned output) {
  constexpr unsigned n = codeLanes / width;
  const std::size_t inputs = a.inputs;
  const signed char *const codes = a.codes + output * inputs;
  const float *const rows = a.rows + row * inputs;
  Vec sum[R][4][n] = {};
  for (std::size_t k = 0; k < inputs; k += codeLanes) {
    if (row == 0) // in sequence, over all four: a line for each 64 codes
      fetchLine<2>(reinterpret_cast<std::uintptr_t>(codes + 4 * k) + a.ahead);
    for (unsigned i = 0; i < 4; ++i)
      for (unsigned v = 0; v < n; ++v) {
        const Vec code = loadBytes(codes + i * inputs + k + v * width);
        for (unsigned r = 0; r < R; ++r)
          sum[r][i][v] =
              addExactProduct(load(rows + r * inputs + k + v * width), code, sum[r][i][v]);
      }
  }
  for (unsigned r = 0; r < R; ++r) {
    Lanes lanes[4];
    for (unsigned i = 0; i < 4; ++i) {
      float part[codeLanes];
      for (unsigned v = 0; v < n; ++v)
        store(part + v * width, sum[r][i][v]);
      lanes[i] = loadLanes(part) + loadLanes(part + codeLanes / 2);
    }
    treeSums(lanes, a.sums + (row + r) * a.stride + output);
  }
}

inline void codeProducts(const CodeProducts &a) {
  constexpr unsigned together = width == 16 ? 4 : 1; // as many as there are registers for
  for (unsigned output = 0; output < a.outputs; output += 4) {
    unsigned row = 0;
    for (; row + together <= a.nRows; row += together)
      codeProductsOf<together>(a, row, output);
    for (; row < a.nRows; ++row)
      codeProductsOf<1>(a, row, output);
  }
}
