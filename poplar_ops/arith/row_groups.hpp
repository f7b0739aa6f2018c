// SPDX-License-Identifier: Apache-2.0
//
// Rows of 8 bits (contract E10) for host code; codelets/row_codes.cpp does the same on a device.
#pragma once

#include "half_bits.hpp"
#include "row_codes.hpp"
#include <algorithm>
#include <cmath>
#include <cstddef>

namespace sparq {

// Calls `use(first, n, scale, codes)` for each group of a row of fp16 bits: its n components from
// `first` on are codes[i] * scale, about. The codes are integers.
template <class Use>
void eachRowGroup(const std::uint16_t *row, std::size_t headDim, const Use &use) {
  for (std::size_t first = 0; first < headDim; first += rowGroup) {
    const std::size_t n = std::min<std::size_t>(rowGroup, headDim - first);
    float codes[rowGroup], most = 0;
    for (std::size_t i = 0; i != n; ++i) {
      codes[i] = widen(row[first + i]);
      most = std::max(most, std::fabs(codes[i]));
    }
    const float scale = rowScale(most), inverse = 1.0f / scale;
    for (std::size_t i = 0; i != n; ++i)
      codes[i] = rowCode(codes[i], inverse);
    use(first, n, scale, codes);
  }
}

// A key or a value as a cache with rows of 8 bits holds it; `to` may be `row`.
inline void roundRow(const std::uint16_t *row, std::size_t headDim, std::uint16_t *to) {
  eachRowGroup(row, headDim,
               [&](std::size_t first, std::size_t n, float scale, const float *codes) {
                 for (std::size_t i = 0; i != n; ++i)
                   to[first + i] = narrow(codes[i] * scale);
               });
}

} // namespace sparq
