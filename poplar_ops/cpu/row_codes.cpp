// SPDX-License-Identifier: Apache-2.0
#include "row_codes.hpp"

#include "../codelets/row_codes.hpp"
#include "../src/half_bits.hpp"
#include <algorithm>
#include <cmath>

namespace sparq {
namespace cpu {

void roundRow(Half *row, std::size_t headDim) {
  for (std::size_t first = 0; first < headDim; first += rowGroup) {
    const std::size_t end = std::min<std::size_t>(first + rowGroup, headDim);
    float numbers[rowGroup], most = 0;
    for (std::size_t c = first; c < end; ++c) {
      numbers[c - first] = widen(row[c]);
      most = std::max(most, std::fabs(numbers[c - first]));
    }
    const float scale = rowScale(most), inverse = 1.0f / scale;
    for (std::size_t c = first; c < end; ++c)
      row[c] = narrow(rowCode(numbers[c - first], inverse) * scale);
  }
}

} // namespace cpu
} // namespace sparq
